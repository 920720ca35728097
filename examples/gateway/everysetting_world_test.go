package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport/recording"
)

// world is a gateway, which starts when something is asked of it, and what is around it.
type world struct {
	*testing.T
	row       *settingRow
	dir, path string
	texts     [2]string // of the file, with each value
	value     string    // that is in force
	text      string    // of the file, when the gateway starts
	reload    bool      // to the other value, as soon as it has started
	refused   bool      // the reload needs a restart
	one, two  *modelServer
	c         *command
	ended     bool
	ctx       context.Context // of clients, who leave before the gateway stops
	cancel    func()
	leaving   []func()
	calls     chan string // of servers that are none of models
}

func newWorld(t *testing.T, row *settingRow) *world {
	w := &world{T: t, row: row, dir: t.TempDir(), one: newModelServer(t), two: newModelServer(t), calls: make(chan string, 100)}
	w.path = filepath.Join(w.dir, "gateway.yaml")
	w.ctx, w.cancel = context.WithCancel(context.Background())
	file := row.file
	if !strings.Contains(file, "endpoints:") && !strings.Contains(file, "discover:") {
		file += "\nendpoints: [{url: ONE}]"
	}
	if !strings.Contains(file, "listen:") {
		file += "\nlisten: 127.0.0.1:0"
	}
	writeKeys(t, w.write)
	w.write("one.list", w.one.URL)
	w.write("two.list", w.two.URL)
	for i, value := range row.values {
		w.texts[i] = strings.Replace(file, "VALUE", value, 1)
	}
	for name, address := range map[string]func() string{
		"ONE": func() string { return w.one.URL }, "TWO": func() string { return w.two.URL }, "NOBODY": func() string { return "http://" + nobody(t) },
		"FIRST": func() string { return w.listener("first") }, "SECOND": func() string { return w.listener("second") },
		"PUBLISHER": func() string { return startPublisher(t).pub.Addr().String() },
		"NATS":      func() string { return w.nats(nil) }, "TLS": func() string { return w.nats(w.secured()) },
	} {
		if strings.Contains(w.texts[0]+w.texts[1], name) {
			is := address()
			for i := range w.texts {
				w.texts[i] = strings.ReplaceAll(w.texts[i], name, is)
			}
		}
	}
	return w
}

// secured is the configuration of a server with the certificate one.pem, which wants to know its
// clients.
func (w *world) secured() *tls.Config {
	pair, err := tls.LoadX509KeyPair(filepath.Join(w.dir, "one.pem"), filepath.Join(w.dir, "key.pem"))
	require.NoError(w, err)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
}

func (w *world) write(name, text string) {
	require.NoError(w, os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600))
}

// differing returns the settings that differ in the two files.
func (w *world) differing() (all []string) {
	values := func(text string) map[string]string {
		s, all := defaultSettings(), map[string]string{}
		_, err := readStrict(w.path, []byte(text), s)
		require.NoError(w, err)
		valuesIn(reflect.ValueOf(s).Elem(), "", all)
		return all
	}
	a, b := values(w.texts[0]), values(w.texts[1])
	for name := range a {
		if a[name] != b[name] {
			all = append(all, name)
		}
	}
	for name := range b {
		if _, there := a[name]; !there {
			all = append(all, name)
		}
	}
	return all
}

// mistake is the error of a gateway that does not start, or reload.
type mistake string

// look returns what the row sees with its i-th value, or why the gateway does not start. With
// reload, that is the value that a reload brings.
func (w *world) look(i int, reload bool) (seen string) {
	w.value, w.text, w.reload = w.row.values[i], w.texts[i], reload
	w.write("gateway.yaml", w.text)
	defer func() {
		if r := recover(); r != nil {
			m, ok := r.(mistake)
			if !ok {
				panic(r)
			}
			seen = string(m)
		}
	}()
	defer w.stop()
	return w.row.see(w)
}

// fail ends look with the text of an error, without its place.
func (w *world) fail(text string) {
	panic(mistake(strings.ReplaceAll(place.ReplaceAllString(text, ""), w.dir, "DIR")))
}

var (
	place    = regexp.MustCompile(`^(gateway: )?(\S+gateway\.yaml(:\d+)?: )?`)
	exited   = regexp.MustCompile(`(?m)^gateway: .*`)
	routing  = regexp.MustCompile(`routing"?[ ,]"?url"?[=:]"?(http[^" ]+).*decisions"?[=:]"?(http[^" ]+)/debug`)
	reloaded = regexp.MustCompile(`settings reloaded|keeping the old ones" error=(".*")`)
)

// gateway starts the gateway, if it does not run.
func (w *world) gateway() *command {
	if w.c != nil {
		return w.c
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.c = &command{stderr: &lockedBuffer{}, interrupt: cancel, status: make(chan int, 1)}
	go func() { w.c.status <- run(ctx, []string{"-config", w.path}, io.Discard, w.c.stderr) }()
	require.Eventually(w, func() bool {
		log := w.c.stderr.String()
		return routing.MatchString(log) || exited.MatchString(log)
	}, 30*time.Second, time.Millisecond, w.c.stderr)
	if said := exited.FindString(w.c.stderr.String()); said != "" {
		w.fail(said)
	}
	at := routing.FindStringSubmatch(w.c.stderr.String())
	w.c.url, w.c.admin = at[1], at[2]
	if w.reload {
		w.reloads()
	}
	return w.c
}

// reloads brings the other value. The signal is for all gateways of this process: one that had
// already begun to reload may have read the old file, and the next one has not.
func (w *world) reloads() {
	w.write("gateway.yaml", w.texts[1])
	before := len(w.c.stderr.String())
	var since string
	for n := 1; n <= 2; n++ {
		require.NoError(w, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		require.Eventually(w, func() bool {
			since = w.c.stderr.String()[before:]
			return len(reloaded.FindAllString(since, -1)) >= n
		}, 30*time.Second, time.Millisecond, w.c.stderr)
	}
	all := reloaded.FindAllStringSubmatch(since, -1)
	if why := all[len(all)-1][1]; why != "" {
		text, err := strconv.Unquote(why)
		require.NoError(w, err)
		w.fail(text)
	}
	w.restarts(regexp.MustCompile(`needs a restart"[ ,]"?field"?[=:]"?` + w.field() + `\b`).MatchString(since))
}

// field is the row's field in the file.
func (w *world) field() string {
	return w.row.setting[:strings.IndexAny(w.row.setting+".", ".[{")]
}

// restarts says whether the reload needs a restart.
func (w *world) restarts(yes bool) {
	if w.refused = yes; !yes {
		w.value = w.row.values[1]
	}
}

// stop stops the gateway, so that everything it writes is written.
func (w *world) stop() {
	if w.c != nil && !w.ended {
		w.ended = true
		w.cancel()
		for _, leave := range w.leaving {
			leave()
		}
		w.c.interrupt()
		<-w.c.status
	}
}

// settings are those in force.
func (w *world) settings() *settings {
	parse := func(text string) *settings {
		s, err := parseSettings(w.path, []byte(text))
		if err != nil {
			w.fail(err.Error())
		}
		return s
	}
	s := parse(w.text)
	if w.reload {
		next := parse(w.texts[1])
		if w.restarts(slices.Contains(restart(s, next), w.field())); !w.refused {
			return next
		}
	}
	return s
}

// built is the gateway that the settings make, without its listeners.
func (w *world) built() *gateway {
	s, err := parseSettings(w.path, []byte(w.text))
	if err != nil {
		w.fail(err.Error())
	}
	g, err := newGateway(gatewayConfig{policy: s.Policy, endpoints: s.endpoints(), settings: s, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.fail(err.Error())
	}
	w.Cleanup(func() { assert.NoError(w, g.close()) })
	if w.reload {
		if err := g.apply(w.settings()); err != nil {
			w.fail(err.Error())
		}
	}
	return g
}

// ask sends a chat; more are header pairs.
func (w *world) ask(more ...string) answer {
	return w.post("/v1/chat/completions", chat("Hello."), more...)
}

func chat(text string) string {
	return `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"` + text + `"}]}`
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (w *world) post(path, body string, more ...string) answer {
	r, err := http.NewRequestWithContext(w.ctx, http.MethodPost, w.gateway().url+path, strings.NewReader(body))
	require.NoError(w, err)
	r.Close = true
	for i := 0; i+1 < len(more); i += 2 {
		r.Header.Set(more[i], more[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// status is that of a chat.
func (w *world) status() string { return fmt.Sprint(w.ask().status) }

// records returns what was recorded in r.jsonl, after stopping the gateway.
func (w *world) records() (all []recording.Request) {
	w.stop()
	f, err := os.Open(filepath.Join(w.dir, "r.jsonl"))
	require.NoError(w, err)
	defer f.Close()
	require.NoError(w, recording.Read(f, func(_ int, r *recording.Request) error {
		all = append(all, *r)
		return nil
	}))
	return all
}

// served says how many requests each server has got.
func (w *world) served() string { return fmt.Sprint(len(w.one.all()), " and ", len(w.two.all())) }

// quiet is how long something that is not to happen is waited for.
const quiet = 150 * time.Millisecond

// waitFor waits for the end of something that began after then, and that the setting ends after
// 50ms, or not in the time of the test.
func (w *world) waitFor(then time.Time, ended <-chan struct{}) string {
	patience := quiet
	if w.value == "50ms" {
		patience = 5 * time.Second // less than any default
	}
	select {
	case <-ended:
		if took := time.Since(then); took < 50*time.Millisecond {
			return fmt.Sprint("ends after ", took)
		}
		return "ends"
	case <-time.After(patience):
		return "goes on"
	}
}

// lasts is waitFor something that do does.
func (w *world) lasts(do func()) string {
	ended, then := make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		do()
	}()
	return w.waitFor(then, ended)
}
