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

// startWithin bounds the time that a server takes to load its model.
const startWithin = time.Minute

// Server is one process on a loopback port, which it keeps over a restart. The
// kernel kills it when the process that started it ends. Its methods are not safe
// for concurrent use, but for URL.
type Server struct {
	model  string // path
	port   int
	cmd    *exec.Cmd // nil: it is not running
	exited chan struct{}
	log    tail
}

// Start starts a server with the tiny model and waits until it takes requests.
func Start() (*Server, error) { return StartModel(filepath.Join(os.Getenv(Env), "tiny.gguf")) }

// StartModel starts one with a model of the caller's.
func StartModel(path string) (*Server, error) {
	s := &Server{model: path}
	var err error
	for range 3 { // somebody may take the port before the server has it
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

// URL is where the server is.
func (s *Server) URL() string { return "http://127.0.0.1:" + strconv.Itoa(s.port) }

// Restart starts the server again, its cache empty, after it was killed.
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

// Kill ends the process at once, as a crash does: its connections break.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.exited
	s.cmd = nil
}

// tail keeps the end of what is written.
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
