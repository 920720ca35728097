package rig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
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

// Slots and context of each llama.cpp server. The context is shared by the slots.
const (
	LlamaSlots   = 4
	LlamaContext = 8192 * LlamaSlots
)

// loadWithin limits the time that a server may take to load its model.
const loadWithin = 10 * time.Minute

// Process is a real engine: one process on a loopback port, which it keeps over a restart. The
// kernel kills it when the process that started it ends. Its methods, except URL, are not safe for
// concurrent use.
type Process struct {
	port    int
	command func(port int) *exec.Cmd
	cmd     *exec.Cmd // nil: not running
	exited  chan struct{}
}

// StartLlama starts llama.cpp's server with a model that produces nonsense.
func StartLlama() (*Process, error) {
	return Start(func(port int) *exec.Cmd {
		dir := os.Getenv(llamaEnv)
		return exec.Command(filepath.Join(dir, "llama-server"), "-m", filepath.Join(dir, "tiny.gguf"),
			"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--metrics",
			"-c", strconv.Itoa(LlamaContext), "-np", strconv.Itoa(LlamaSlots), "-t", "1")
	})
}

// Start starts a server and waits until its health page says that it is ready.
func Start(command func(port int) *exec.Cmd) (*Process, error) {
	s := &Process{command: command}
	var err error
	for range 3 { // another process may take the port first
		if s.port, err = FreePort(); err != nil {
			return nil, err
		}
		if err = s.Restart(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// FreePort is a port that nobody listens on.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// URL is the server's URL.
func (s *Process) URL() string { return "http://127.0.0.1:" + strconv.Itoa(s.port) }

// Restart starts the server again after a Kill, with an empty cache.
func (s *Process) Restart() error {
	s.Kill()
	cmd := s.command(s.port)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var log bytes.Buffer // read when the process has ended
	cmd.Stdout, cmd.Stderr = io.Discard, &log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // it is killed
	}()
	s.cmd, s.exited = cmd, exited
	if err := s.ready(); err != nil {
		s.Kill()
		return fmt.Errorf("rig: %w; it said last:\n%s", err, log.String())
	}
	return nil
}

// ready waits until the model is loaded.
func (s *Process) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), loadWithin)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/health", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-s.exited:
			return fmt.Errorf("%v", s.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("not ready within %v", loadWithin)
		}
	}
}

// Kill ends the process at once, like a crash: its connections break.
func (s *Process) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()                              // first, or it could answer that its children have ended
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // with its children; it may have ended already
	<-s.exited
	s.cmd = nil
}
