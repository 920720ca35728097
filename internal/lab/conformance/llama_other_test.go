//go:build !linux

package conformance

import "testing"

func llama(*testing.T) (f fleet, why string) { return f, "llama.cpp is tested with on Linux" }
