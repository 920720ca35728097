package llamaserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Slots and context of each server. The context is shared by the slots.
const (
	Slots   = 4
	Context = 8192 * Slots
)

// startWithin limits the time that a server may take to load its model.
const startWithin = time.Minute

// Server is one process on a loopback port, which it keeps over a restart. The
// kernel kills it when the process that started it ends. Its methods, except URL,
// are not safe for concurrent use.
type Server struct {
	model  string // path
	port   int
	cmd    *exec.Cmd // nil: not running
	exited chan struct{}
	log    tail
}

// Start starts a server with the tiny model and waits until it is ready.
func Start() (*Server, error) { return StartModel(filepath.Join(os.Getenv(Env), "tiny.gguf")) }

// StartModel starts a server with the caller's model.
func StartModel(path string) (*Server, error) {
	s := &Server{model: path}
	var err error
	for range 3 { // another process may take the port first
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = s.Restart(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// URL is the server's URL.
func (s *Server) URL() string { return "http://127.0.0.1:" + strconv.Itoa(s.port) }

// Restart starts the server again after a Kill, with an empty cache.
func (s *Server) Restart() error {
	s.Kill()
	cmd := exec.Command(filepath.Join(os.Getenv(Env), "llama-server"), "-m", s.model,
		"--host", "127.0.0.1", "--port", strconv.Itoa(s.port), "--metrics",
		"-c", strconv.Itoa(Context), "-np", strconv.Itoa(Slots), "-t", "1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = io.Discard, &s.log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("llamaserver: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // it is killed
	}()
	s.cmd, s.exited = cmd, exited
	if err := s.ready(); err != nil {
		s.Kill()
		return fmt.Errorf("llamaserver: %w; it said last:\n%s", err, s.log.String())
	}
	return nil
}

// ready waits until the model is loaded.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
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
			return fmt.Errorf("not ready within %v", startWithin)
		}
	}
}

// Kill ends the process at once, like a crash: its connections break.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended already
	<-s.exited
	s.cmd = nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 4 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(len(t.kept)-most, 0):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
