// Package llamaserver runs llama.cpp's server for tests: a real engine, with a
// model that produces nonsense. It is for Linux.
//
// The variable [Env] names a directory with the program, llama-server, and a model
// with random weights, tiny.gguf. If it is not set, [Available] says so and tests
// skip.
package llamaserver

import (
	"fmt"
	"os"
	"path/filepath"
)

// Env is the environment variable that names the directory.
const Env = "ENDPICK_LLAMA"

// Available returns an error that says what is missing, or nil.
func Available() error {
	dir := os.Getenv(Env)
	if dir == "" {
		return fmt.Errorf("%s is not set: no llama.cpp to test with", Env)
	}
	for _, name := range []string{"llama-server", "tiny.gguf"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s: %w", Env, err)
		}
	}
	return nil
}
