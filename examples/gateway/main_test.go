package main

import (
	"bytes"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":                                               "give -listen or -config (gateway -h lists the flags)",
		"-policies lmetric":                              "flag provided but not defined: -policies (gateway -h lists the flags)",
		"-check":                                         "-check needs -config",
		"-config f -seed 1":                              "-seed: with -config, settings come from the file alone",
		"-listen :0 -endpoints 0":                        "-endpoints 0 is below 1",
		"-listen :0 -kv-tokens 10":                       "-kv-tokens 10 is below 1024",
		"-listen :0 -admin=":                             "-admin is empty",
		"-listen :0 -backend a:80":                       "want http://HOST",
		"-listen :0 -policy best":                        `policy "best" is unknown; there are aibrix, always-busiest,`,
		"-listen :0 -queue -1":                           "-queue -1 is negative",
		"-listen :0 -queue-timeout 1s":                   "-queue-timeout needs -queue",
		"-listen :0 -grace -1s":                          "-grace -1s is negative",
		"-listen :0 -grace soon":                         "invalid value",
		"something":                                      "an argument that belongs to no flag",
		"-listen :0 -queue 1 -queue-timeout 0s":          "-queue-timeout 0s is not above zero",
		"-listen :0 -backend http://a -endpoints 2":      "-endpoints and -kv-tokens are for embedded servers, without -backend",
		"-listen :0 -backend-file f -kv-tokens 9999":     "-endpoints and -kv-tokens are for embedded servers, without -backend",
		"-listen :0 -backend http://a -backend http://a": "-backend 2: given twice",
		"-listen :0 -backend http://a -backend-file f":   "-backend and -backend-file can't both be given",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		require.Contains(t, stderr.String(), want)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line, which no list of flags hides")
		require.Empty(t, stdout.String())
	}
	var stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"-h"}, nil, &stderr))
	require.Contains(t, stderr.String(), "gateway -config FILE")
	require.Contains(t, stderr.String(), "-backend-file")
}

func TestGracefulStop(t *testing.T) {
	c := start(t, "-endpoints", "2")
	status, _ := get(c.url + "/readyz")
	require.Equal(t, http.StatusOK, status)

	streaming := traffic.NewClient(c.url)
	defer streaming.Close()
	done := make(chan traffic.Sample, 1)
	go func() {
		done <- streaming.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Count to a hundred."}}, 100)
	}()
	c.shows(t, "open 1,")
	c.interrupt()
	require.Eventually(t, func() bool { // a request that comes at the same time may be served
		refused := streaming.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Too late."}}, 1).Err
		return refused != nil && strings.Contains(refused.Error(), "503")
	}, 5*time.Second, time.Millisecond)
	resp := rig.Must(http.Post(c.url+"/v1/messages", "application/json", strings.NewReader(`{"model":"m"}`)))
	defer resp.Body.Close()
	require.Equal(t, 503, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, string(rig.Must(io.ReadAll(resp.Body))), `"message":"the gateway is stopping, try again"`)
	s := <-done
	require.NoError(t, s.Err, "a stream that had begun ends")
	require.Len(t, s.Text, 400)
	require.Equal(t, 0, <-c.status, c.stderr)
	require.Error(t, streaming.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Too late."}}, 1).Err)
}

// A client that is connected and has asked nothing does not make a stop a failure.
func TestStopWithoutRequests(t *testing.T) {
	c := start(t, "-backend", "http://127.0.0.1:1", "-grace", "50ms")
	idle := rig.Must(net.Dial("tcp", strings.TrimPrefix(c.url, "http://")))
	defer idle.Close()
	_, _ = get(c.url + "/readyz") // it was accepted before
	c.ends(t, 0)
}

// While load balancers hear that a gateway will stop, it takes requests, on connections that end.
func TestDrain(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	c := startConfig(t, writeSettings(t, before(server.URL, "timeouts: {drain: 1s}\n")))
	c.interrupt()
	require.Eventually(t, func() bool {
		status, _ := get(c.url + "/readyz")
		return status == http.StatusServiceUnavailable
	}, 5*time.Second, time.Millisecond)
	resp := rig.Must(http.Post(c.url+"/v1/messages", "application/json", strings.NewReader(`{"model":"m"}`)))
	resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	require.True(t, resp.Close)
	require.Equal(t, 0, <-c.status, c.stderr)
}

// What a server sends beyond the end of its answer is in no log.
func TestNoAnswerInTheLog(t *testing.T) {
	var logged rig.Output
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	sent := make(chan error)
	server := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			sent <- err
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		time.Sleep(100 * time.Millisecond)
		_, err = io.WriteString(conn, "a secret")
		sent <- err
		_, _ = io.Copy(io.Discard, conn) // until the gateway closes it
		sent <- nil
	})
	c := start(t, "-backend", server.URL)
	status, _ := post(t, c.url, false)
	require.Equal(t, 200, status)
	for range 2 {
		require.NoError(t, <-sent)
	}
	c.ends(t, 0)
	require.NotContains(t, logged.String()+c.stderr.String(), "secret")
}

// The credentials in a server's address concern that server only.
func TestCredentialsAreNotLogged(t *testing.T) {
	asked := make(chan string, 1)
	server := answering(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		asked <- user + ":" + password
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"Hi."}}]}`)
	})
	address := strings.TrimPrefix(server.URL, "http://")
	c := start(t, "-backend", "http://user:secret@"+address)
	_, _ = post(t, c.url, false)
	require.Equal(t, "user:secret", <-asked)
	require.Contains(t, c.stderr.String(), "msg=endpoint id=http://"+address+" url=http://"+address)
	require.NotContains(t, c.stderr.String(), "secret")
	for _, page := range []string{"/debug/endpick", "/debug/endpick/caches", "/metrics"} {
		_, body := get(c.admin + page)
		require.NotContains(t, body, "secret", page)
	}
}

// What fails only when a gateway starts is reported with its field, or its flag.
func TestServeCannotStart(t *testing.T) {
	taken := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer taken.Close()
	at, dir := taken.Addr().String(), t.TempDir()
	path, nowhere := filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "none", "x")
	const endpoints = "endpoints: [{url: \"http://a\"}]\n"
	for text, want := range map[string]string{
		"listen: " + at + "\n" + endpoints:                          ":1: listen: listen tcp " + at + ": bind: address already in use\n",
		endpoints + "listen: 127.0.0.1:0\nadmin: " + at + "\n":      ":3: admin: listen tcp " + at + ": bind: address already in use\n",
		endpoints + "listen: 127.0.0.1:0\nrecord: {file: none/x}\n": ":3: record: open " + nowhere + ": no such file or directory\n",
		"listen: 127.0.0.1:0\ndiscover: {file: none/x}\n":           ":2: discover: " + nowhere + ": no such file or directory\n",
	} {
		writeFile(t, path, text)
		var stderr bytes.Buffer
		require.Equal(t, 1, run(t.Context(), []string{"-config", path}, io.Discard, &stderr))
		assert.Contains(t, stderr.String(), "gateway: "+path+want)
		if err := check(path, io.Discard, io.Discard); strings.Contains(text, "none") {
			assert.ErrorContains(t, err, want[:len(":3: record")])
		} else {
			assert.NoError(t, err, "the gateway that has the address may be running")
		}
	}
	list := filepath.Join(dir, "list")
	writeFile(t, path, "discover: {file: list}\nrecord: {file: list}\n")
	writeFile(t, list, "http://a\n")
	require.NoError(t, check(path, io.Discard, io.Discard))
	writeFile(t, list, "http://a\nftp://b\n")
	require.ErrorContains(t, check(path, io.Discard, io.Discard), ":1: discover: ")
	for args, want := range map[string]string{
		"-endpoints 1 -listen " + at:                          "-listen: listen tcp " + at + ": bind: address already in use\n",
		"-endpoints 1 -listen 127.0.0.1:0 -admin " + at:       "-admin: listen tcp " + at + ": bind: address already in use\n",
		"-endpoints 1 -listen 127.0.0.1:0 -record " + nowhere: "-record: open " + nowhere + ": no such file or directory\n",
		"-listen 127.0.0.1:0 -backend-file " + nowhere:        "-backend-file: " + nowhere + ": no such file or directory\n",
	} {
		var stderr bytes.Buffer
		require.Equal(t, 1, run(t.Context(), strings.Fields(args), io.Discard, &stderr))
		assert.Contains(t, stderr.String(), "gateway: "+want)
	}
}

// Every flag of a gateway that serves changes the setting that it stands for, and no other; what
// settings do is tested by TestEverySetting.
func TestEveryFlagIsASetting(t *testing.T) {
	const serving = "-listen 127.0.0.1:0 -seed 7 "
	values := func(args string) map[string]string {
		o, err := parseOptions(strings.Fields(serving+args), nil)
		require.NoError(t, err, args)
		all := map[string]string{}
		valuesIn(reflect.ValueOf(o.settings).Elem(), "", all)
		return all
	}
	flags := map[string]struct{ value, setting, want string }{
		"listen":        {"127.0.0.1:3", "listen", `"127.0.0.1:3"`},
		"admin":         {"127.0.0.1:3", "admin", `"127.0.0.1:3"`},
		"trust-headers": {"", "trust_headers", "true"},
		"record":        {"r", "record.file", `"r"`},
		"backend":       {"http://a -backend http://b", "endpoints[].url", `"http://a"` + "\n" + `"http://b"`},
		"backend-file":  {"list", "discover.file", `"list"`},
		"policy":        {"lmetric", "policy", `"lmetric"`},
		"grace":         {"3ms", "timeouts.grace", "3000000"},
		"queue":         {"3", "queue.requests", "3"},
		"queue-timeout": {"3ms -queue 1", "queue.timeout", "3000000"},
		"seed":          {"3", "seed", "0x3"},
		"log":           {"all", "log.requests", `"all"`},
	}
	before := values("")
	require.Equal(t, []string{"true\n", "0\n", "0\n", "0\n", "1000000000\n"}, []string{before["shared_cache"], before["timeouts.body"],
		before["timeouts.unread"], before["limits.connections"], values("-backend-file f")["discover.interval"]})
	for name, f := range flags {
		after := values("-" + name + " " + f.value)
		require.Equal(t, f.want+"\n", after[f.setting], name)
		for setting, value := range after {
			part, _, _ := strings.Cut(f.setting, ".") // which may not have been there
			if setting != f.setting && !strings.HasPrefix(setting, strings.TrimSuffix(part, "[]")) {
				require.Equal(t, before[setting], value, "%s changes %s", name, setting)
			}
		}
	}

	var help bytes.Buffer
	_, _ = parseOptions([]string{"-h"}, &help)
	elsewhere := []string{"endpoints", "kv-tokens", "config", "check"}
	for _, m := range regexp.MustCompile(`(?m)^  -(\S+)`).FindAllStringSubmatch(help.String()[strings.Index(help.String(), "\nFlags:"):], -1) {
		require.Contains(t, slices.AppendSeq(elsewhere, maps.Keys(flags)), m[1])
	}
}
