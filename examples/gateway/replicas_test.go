package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/replica"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A gateway starts, serves, follows its file and stops without NATS, and reports that.
// internal/lab/conformance/live tests several gateways with NATS.
func TestReplicasWithoutNATS(t *testing.T) {
	b := newBackend(t)
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	write := func(more string) { writeFile(t, path, before(b.URL, more)) }
	replicas := func(key int, fleet string) string {
		return fmt.Sprintf("hash_key: %064x\nreplicas: {nats: \"nats://gateway:hidden@%s\", fleet: %s}\n", key, nobody(t), fleet)
	}
	write(replicas(1, "chat"))
	c := startConfig(t, path)
	ask := func() {
		for range 3 {
			code, _ := post(t, c.url, false)
			require.Equal(t, 200, code)
		}
	}
	shown := func(path, what string) bool {
		status, text := get(c.admin + path)
		require.Equal(t, 200, status)
		return strings.Contains(text, what)
	}
	alone := func(fleet string) {
		require.Eventually(t, func() bool {
			return shown("/debug/endpick", "Those of fleet "+fleet) && shown("/debug/endpick", "NATS can&#39;t be reached. This gateway knows its own requests alone.")
		}, 30*time.Second, 5*time.Millisecond, c.stderr)
		ask()
		require.True(t, shown("/metrics", "\nendpick_replica_connected 0\n"))
		require.True(t, shown("/metrics", "\nendpick_replica_others 0\n"))
		require.Eventually(t, func() bool { return shown("/metrics", "\nendpick_replica_shared_total 3\n") }, 30*time.Second, 5*time.Millisecond)
	}
	alone("chat")
	c.logs(t, `level=WARN msg=replicas connected=false others=0 error="`, 1)

	write(replicas(1, "other"))
	c.reload(t, 1)
	alone("other")
	write(replicas(2, "other"))
	c.reload(t, 2)
	alone("other")
	write("")
	c.reload(t, 3)
	ask()
	require.False(t, shown("/debug/endpick", "Other gateways"))
	require.False(t, shown("/metrics", "endpick_replica_"))
	write(replicas(3, "chat"))
	c.reload(t, 4)
	alone("chat")
	require.NotContains(t, c.stderr.String(), "hidden")
	c.ends(t, 0)
	require.NotContains(t, c.stderr.String(), "level=ERROR")
}

// A gateway that stops waits for its own clients, not for those of others.
func TestStoppingWaitsForNoOtherGateway(t *testing.T) {
	release := make(chan struct{})
	asked := make(chan struct{})
	slow := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-release
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[]}`)
	})
	answer := sync.OnceFunc(func() { close(release) })
	defer answer()
	g := newTestGateway(t, "endpoints: [{id: a, url: \""+slow.URL+"\"}]\n")
	mirrored := rig.Must(g.router.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a", Mirrored: true}, InputTokens: 10}))
	defer mirrored.Done(endpick.Outcome{})

	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	server := g.server(defaultSettings())
	go func() { _ = server.Serve(l) }()
	served := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+l.Addr().String()+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"Hello."}]}`))
		if !assert.NoError(t, err) {
			served <- 0
			return
		}
		_ = resp.Body.Close()
		served <- resp.StatusCode
	}()
	<-asked
	ended := make(chan error, 1)
	go func() { ended <- g.shutdown(server, 0, time.Hour) }()
	require.Eventually(t, func() bool { return send(g, "GET", "/readyz", "").Code == 503 }, 30*time.Second, time.Millisecond)
	answer()
	require.NoError(t, soon(t, ended, "it waits for what is not its own"))
	require.Equal(t, http.StatusOK, <-served)
	require.Equal(t, 1, g.router.Stats().OpenLeases, "the other's goes on")
}

// Credentials are in a file for NATS, and none of it is shown.
func TestCredentials(t *testing.T) {
	all := credentialsText("e30.e30.hidden", string(rig.Must(rig.Must(nkeys.CreateUser()).Seed())))
	jwt, _, _ := strings.Cut(all, "-----BEGIN USER NKEY SEED-----")
	dir := t.TempDir()
	path := filepath.Join(dir, "gateway.yaml")
	parse := func(text string) error {
		writeFile(t, filepath.Join(dir, "user.creds"), text)
		_, err := parseSettings(path, []byte(aHashKey+"endpoints: [{url: \"http://a\"}]\nreplicas: {nats: \"tls://a\", fleet: x, credentials: user.creds}\n"))
		return err
	}
	require.NoError(t, parse(all))
	require.EqualError(t, parse(jwt), path+":3: replicas.credentials: has no key of a user")
	require.EqualError(t, parse(""), path+":3: replicas.credentials: has no JWT of a user")
}

// A connection that NATS has closed for good, with an unknown error, is opened again. What NATS refuses
// is in the log, and does not fill it.
func TestReplicasConnectAgain(t *testing.T) {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	var met atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_, _ = io.WriteString(c, `INFO {"server_id":"x","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576}`+"\r\n")
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if lines.Text() == "PING" {
						_, _ = io.WriteString(c, "PONG\r\n"+strings.Repeat("-ERR 'Permissions Violation'\r\n", 500))
						if met.Add(1) != 3 { // that one is the gateway's to close
							_, _ = io.WriteString(c, "-ERR 'Of Another World'\r\n")
						}
					}
				}
			})
		}
	})
	var logged rig.Output
	g := loggingGateway(t, &logged, parsed(aHashKey+"endpoints: [{url: \"http://"+nobody(t)+"\"}]\nreplicas: {nats: \"nats://"+l.Addr().String()+"\", fleet: f}\n"))
	defer all.Wait()
	defer l.Close()
	defer g.sharing.take(nil, g.router)
	assert.Same(t, g.health, g.settings.Load().Replicas.config(prefix.Key{}, g.health).Health, "they share whom they find unhealthy")
	require.Eventually(t, func() bool { return met.Load() >= 3 }, 30*time.Second, time.Millisecond)
	const refused = `level=WARN msg=replicas error="nats: permissions violation`
	require.Eventually(t, func() bool { return strings.Contains(logged.String(), refused) }, 30*time.Second, time.Millisecond)
	require.Less(t, strings.Count(logged.String(), "permissions violation"), 100)
}

// What the debug page says of other gateways.
func TestViewOfOthers(t *testing.T) {
	a := replica.Peer{Name: "a", Live: true, InFlight: 3, Age: 2 * time.Second}
	b := replica.Peer{Name: "b", InFlight: 4, Age: time.Second}
	second := replica.Peer{Name: "b", Instance: 1, Live: true}
	with := func(peers ...replica.Peer) replica.Status {
		return replica.Status{Running: true, Connected: true, Peers: peers}
	}
	for _, x := range []struct {
		status         replica.Status
		class, verdict string
	}{
		{replica.Status{}, "soso", "What they do is not known yet."},
		{replica.Status{Running: true}, "bad", "NATS can't be reached. This gateway knows its own requests alone."},
		{with(), "bad", "There is no other gateway. This one knows its own requests alone."},
		{with(b), "bad", "There is no other gateway. This one knows its own requests alone."},
		{with(b, a), "soso", "1 of 2 other gateways are known."},
		{with(a), "good", "What 1 other gateway does counts here."},
		{with(second, a), "good", "What 2 other gateways do counts here."},
	} {
		p := viewOfOthers(x.status, "fleet")
		assert.Equal(t, []any{"fleet", x.class, x.verdict}, []any{p.Fleet, p.Class, p.Verdict})
		assert.Empty(t, p.Notes)
	}
	assert.Equal(t, []replica.Peer{a, b, second}, viewOfOthers(with(second, b, a), "").Peers)

	s := with(a, b)
	s.Refused, s.Malformed, s.Unmirrored, s.TooMany, s.Missed, s.Restarts = 1, 2, 3, 4, 5, 6
	s.Shared, s.Unshared, s.SentBytes, s.SnapshotBytes, s.ReceivedBytes, s.Snapshots, s.UnknownBlocks = 7, 8, 9, 10, 11, 12, 13
	var notes []string
	for _, n := range viewOfOthers(s, "").Notes {
		notes = append(notes, strings.Join(strings.Fields(n)[:3], " "))
	}
	assert.Equal(t, []string{"1 messages were", "2 messages made", "3 requests of", "4 messages came", "5 messages came", "6 times there"}, notes)

	metrics := map[string]float64{}
	for _, m := range sharingMetricList {
		name, _, _ := strings.Cut(strings.TrimPrefix(m.desc.String(), `Desc{fqName: "endpick_replica_`), `"`)
		metrics[name] = m.value(&s)
	}
	assert.Equal(t, map[string]float64{
		"connected": 1, "others": 1, "others_in_flight_requests": 7, "others_age_seconds": 2,
		"refused_total": 1, "malformed_total": 2, "unmirrored_total": 3, "too_many_total": 4, "missed_total": 5, "restarts_total": 6,
		"shared_total": 7, "unshared_total": 8, "sent_bytes_total": 9, "snapshot_bytes_total": 10, "received_bytes_total": 11,
		"snapshots_total": 12, "unknown_blocks_total": 13,
	}, metrics)
	assert.Zero(t, sharingMetricList[0].value(&replica.Status{}))
}
