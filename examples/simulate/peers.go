package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"

	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/traffic"
)

// peer is a router that is a program.
type peer struct {
	name    string
	program string // empty: examples/gateway
	args    string // a template
	file    string // of peers, likewise, which the program reads; empty: none
	version string // argument that prints it, until found; empty: its package's
}

//go:embed peers
var peerFiles embed.FS

// peers are in the order of the table, which compares all with the first. Each routes as well as it can without
// knowledge of the servers: by prefixes, or to the one with the least to do.
func peers() []peer {
	const gateway = "-listen 127.0.0.1:{{.Port}} -log none{{range .Ports}} -backend http://127.0.0.1:{{.}}{{end}}"
	const aware = "--host 127.0.0.1 --port {{.Port}} --policy cache_aware --worker-urls{{range .Ports}} http://127.0.0.1:{{.}}{{end}}"
	return []peer{
		{name: "endpick", args: gateway},
		{name: "round-robin", args: gateway + " -policy round-robin"},
		{name: "smg", program: "smg", args: "launch " + aware},
		{name: "smg-unprotected", program: "smg", args: "launch " + aware + " --disable-worker-overload-protection"},
		{name: "sglang-router", program: "sglang-router", args: "launch " + aware},
		{name: "vllm-router", program: "vllm-router", args: aware},
		{name: "litellm", program: "litellm", args: "--host 127.0.0.1 --port {{.Port}} --config {{.File}}", file: "litellm.yaml"},
		{name: "envoy", program: "envoy", args: "-c {{.File}} --disable-hot-restart --concurrency 2 -l warning", file: "envoy.yaml", version: "--version"},
		{name: "haproxy", program: "haproxy", args: "-db -f {{.File}}", file: "haproxy.cfg", version: "-v"},
		{name: "nginx", program: "nginx", args: "-p {{.Dir}} -c {{.File}} -e stderr", file: "nginx.conf", version: "-v"},
	}
}

// find looks for the program and its version.
func (p *peer) find(dir string) (err error) {
	if p.program == "" {
		p.program = filepath.Join(dir, "gateway.exe")
		said, err := exec.Command("go", "build", "-o", p.program, "github.com/endpick/endpick/examples/gateway").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go build: %w: %s", err, said)
		}
		return err
	}
	name := p.program
	if p.program, err = exec.LookPath(name); err != nil {
		return err
	}
	print := exec.Command(p.program, p.version)
	if p.version == "" { // a pip's, with Python beside it
		real, _ := filepath.EvalSymlinks(p.program)
		print = exec.Command(filepath.Join(filepath.Dir(real), "python3"), "-c", "import importlib.metadata as m; print(m.version('"+name+"'))")
	}
	said, _ := print.CombinedOutput()
	p.version = regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(string(said))
	return nil
}

// open starts the program before a fleet and waits until it serves.
func (p *peer) open(dir string, fleet *traffic.Fleet) (*traffic.Front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var ports []string
	for _, m := range fleet.Members {
		ports = append(ports, strings.TrimPrefix(m.Address, "127.0.0.1:"))
	}
	port, config := strings.TrimPrefix(l.Addr().String(), "127.0.0.1:"), filepath.Join(dir, p.file)
	set := map[string]any{"Port": port, "Ports": ports, "Model": modelserver.DefaultModel, "Dir": dir, "File": config}
	var args, file strings.Builder
	err = errors.Join(l.Close(), template.Must(template.New("").Parse(p.args)).Execute(&args, set))
	if p.file != "" {
		err = errors.Join(err, template.Must(template.ParseFS(peerFiles, "peers/"+p.file)).Execute(&file, set), os.WriteFile(config, []byte(file.String()), 0o666))
	}
	log, failed := os.Create(filepath.Join(dir, "log"))
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	program := exec.CommandContext(ctx, p.program, strings.Fields(args.String())...)
	program.Dir, program.Stdout, program.Stderr = dir, log, log
	program.Env = append(os.Environ(), "LITELLM_LOCAL_MODEL_COST_MAP=True", "NO_PROXY=127.0.0.1")
	program.Cancel, program.WaitDelay = func() error { return program.Process.Signal(os.Interrupt) }, 5*time.Second
	front := &traffic.Front{Client: traffic.NewClient("http://127.0.0.1:" + port), Leases: func() int { return 0 }}
	front.Stop = func() error { cancel(); _ = program.Wait(); return nil } // its status is that of an interrupt
	if err := program.Start(); err != nil {
		return nil, errors.Join(err, front.Stop())
	}
	// It has found all servers when it has served some requests one after the other.
	served := 0
	for began := time.Now(); served < 8 && time.Since(began) < 2*time.Minute; {
		if served++; front.Client.Ask(ctx, began, []traffic.Message{{Role: "user", Content: "ready?"}}, 2).Err != nil {
			served = 0
			time.Sleep(200 * time.Millisecond)
		}
	}
	if served < 8 {
		said, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("it does not serve: %s", said[max(0, len(said)-500):]), front.Stop())
	}
	return front, nil
}
