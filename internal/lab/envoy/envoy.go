// Package envoy runs a real Envoy for tests.
package envoy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Start runs the Envoy that ENDPICK_ENVOY names until the test ends, and returns its URL. Without
// one, the test is skipped. The addresses in the file are replaced: 10.0.0.1 and 10.0.0.2 stand for
// the servers. edits are what it says besides, and what it should say, in pairs.
func Start(t testing.TB, file, picker string, servers []string, edits ...string) (url string) {
	t.Helper()
	binary := os.Getenv("ENDPICK_ENVOY")
	if binary == "" {
		t.Skip("there is no Envoy: ENDPICK_ENVOY does not name one")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const server = "        - endpoint: {address: {socket_address: {address: %s, port_value: %s}}}\n"
	var all strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&all, server, split(t, s)...)
	}
	config := strings.NewReplacer(
		fmt.Sprintf(server, "10.0.0.1", "8000")+fmt.Sprintf(server, "10.0.0.2", "8000"), all.String(),
		fmt.Sprintf(server, "127.0.0.1", "9002"), fmt.Sprintf(server, split(t, picker)...),
		"address: 0.0.0.0, port_value: 8080", "address: 127.0.0.1, port_value: 0",
		"port_value: 9901", "port_value: 0",
	).Replace(string(text))
	for edit := range slices.Chunk(edits, 2) {
		if !strings.Contains(config, edit[0]) {
			t.Fatalf("%s does not say %q", file, edit[0])
		}
		config = strings.ReplaceAll(config, edit[0], edit[1])
	}
	dir := t.TempDir()
	path, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	process := exec.Command(binary, "-c", path, "--admin-address-path", admin, "--disable-hot-restart", "--concurrency", "2", "-l", "warning")
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if said, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("Envoy said: %s", said)
		}
	})
	for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		if at, err := os.ReadFile(admin); err == nil {
			if _, address, ok := strings.Cut(get("http://"+string(at)+"/listeners"), "::"); ok && get("http://"+string(at)+"/ready") == "LIVE\n" {
				return "http://" + strings.TrimSpace(address)
			}
		}
	}
	t.Fatal("Envoy is not ready after 30 s")
	return ""
}

func split(t testing.TB, address string) []any {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return []any{host, port}
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
