package main

import (
	"net/http"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The container of the compose file serves, and stops when it is asked to.
func TestContainer(t *testing.T) {
	if testing.Short() || exec.Command("docker", "info").Run() != nil || exec.Command("docker", "compose", "version").Run() != nil {
		t.Skip("there is no Docker here, or no time: the image is built, which takes minutes")
	}
	compose := func(args ...string) string {
		out, err := exec.Command("docker", append([]string{"compose", "-p", "endpick-test", "-f", watching + "/compose.yaml"}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", args, out)
		return string(out)
	}
	compose("config", "--quiet")
	t.Cleanup(func() { compose("down", "--volumes", "--rmi", "local") })
	compose("up", "--build", "--detach", "gateway")
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://127.0.0.1:8080/readyz")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, time.Minute, 100*time.Millisecond)
	status, _ := postTo(t, "http://127.0.0.1:8080/v1/completions", `{"model":"demo-8b","prompt":"Hello.","max_tokens":2}`)
	assert.Equal(t, http.StatusOK, status)
	_, page := get(t, "http://127.0.0.1:9464/metrics")
	assert.Contains(t, page, `endpick_requests_total{code="200"`)
	compose("stop", "--timeout", "20", "gateway")
	assert.Contains(t, compose("ps", "--all", "--format", "json", "gateway"), `"ExitCode":0`)
}
