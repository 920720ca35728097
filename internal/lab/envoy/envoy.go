// Package envoy runs a real Envoy.
package envoy

import (
	"crypto/tls"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// OneAddress is the configuration of an Envoy as in the tests of the Gateway API Inference
// Extension, which takes one address from the picker, whatever it is.
//
//go:embed original_dst.yaml
var OneAddress string

// Program is the variable that names the program; without one there is no Envoy here.
const Program = "ENDPICK_ENVOY"

// Start runs an Envoy until the test ends, and returns its URL. Without one, the test is skipped.
// The file is a configuration; edits are as for [Run].
func Start(t testing.TB, file, picker string, servers []string, edits ...string) (url string) {
	t.Helper()
	if os.Getenv(Program) == "" {
		t.Skip("there is no Envoy: " + Program + " does not name one")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	address, stop, err := Run(dir, string(text), picker, servers, edits...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if said, _ := os.ReadFile(filepath.Join(dir, "log")); t.Failed() {
			t.Logf("Envoy said: %s", said)
		}
	})
	return "http://" + address
}

// Run runs an Envoy with this configuration in dir until stop is called, and returns its address.
// The addresses in the configuration are replaced: 10.0.0.1 and 10.0.0.2 stand for the servers.
// edits are what it says besides, and what it should say, in pairs.
func Run(dir, config, picker string, servers []string, edits ...string) (address string, stop func(), err error) {
	const server = "        - endpoint: {address: {socket_address: {address: %s, port_value: %s}}}\n"
	line := func(address string) string {
		host, port, _ := net.SplitHostPort(address)
		return fmt.Sprintf(server, host, port)
	}
	var all strings.Builder
	for _, s := range servers {
		all.WriteString(line(s))
	}
	config = strings.NewReplacer(
		line("10.0.0.1:8000")+line("10.0.0.2:8000"), all.String(),
		line("127.0.0.1:9002"), line(picker),
		"address: 0.0.0.0, port_value: 8080", "address: 127.0.0.1, port_value: 0",
		"port_value: 9901", "port_value: 0",
	).Replace(config)
	for edit := range slices.Chunk(edits, 2) {
		if !strings.Contains(config, edit[0]) {
			return "", nil, fmt.Errorf("envoy: the configuration does not say %q", edit[0])
		}
		config = strings.ReplaceAll(config, edit[0], edit[1])
	}
	path, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", nil, err
	}
	defer log.Close()
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return "", nil, err
	}
	process := exec.Command(os.Getenv(Program), "-c", path, "--admin-address-path", admin, "--disable-hot-restart", "--concurrency", "2", "-l", "warning")
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
	for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		if at, err := os.ReadFile(admin); err == nil {
			if _, address, ok := strings.Cut(get("http://"+string(at)+"/listeners"), "::"); ok && get("http://"+string(at)+"/ready") == "LIVE\n" {
				return strings.TrimSpace(address), stop, nil
			}
		}
	}
	stop()
	said, _ := os.ReadFile(log.Name())
	return "", nil, fmt.Errorf("envoy: not ready after 30 s: %s", said)
}

// TLS is what an Envoy expects of a picker: a certificate, whoever has signed it.
func TLS() *tls.Config {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	return &tls.Config{Certificates: certified.TLS.Certificates}
}

func get(url string) string {
	response, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}
