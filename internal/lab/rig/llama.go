package rig

import (
	"fmt"
	"os"
	"path/filepath"
)

// llamaEnv names a directory with llama.cpp's server, llama-server, and a model with random
// weights, tiny.gguf.
const llamaEnv = "ENDPICK_LLAMA"

// LlamaAvailable returns an error that says what [StartLlama] lacks here, or nil. Then tests skip.
func LlamaAvailable() error {
	dir := os.Getenv(llamaEnv)
	if dir == "" {
		return fmt.Errorf("%s is not set: no llama.cpp to test with", llamaEnv)
	}
	for _, name := range []string{"llama-server", "tiny.gguf"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s: %w", llamaEnv, err)
		}
	}
	return nil
}
