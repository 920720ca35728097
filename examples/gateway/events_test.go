package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix/kvevents"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/transport/scrape"
	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// publisher acts as an engine that publishes its cache: a PUB socket, and a ROUTER
// socket that replays. So that a subscriber notices what it has missed, it
// occasionally publishes a batch without events.
type publisher struct {
	pub, router zmq4.Socket

	mu      sync.Mutex
	batches [][]byte
}

func startPublisher(t *testing.T) *publisher {
	ctx, stop := context.WithCancel(context.Background())
	quiet := zmq4.WithLogger(log.New(io.Discard, "", 0))
	p := &publisher{pub: zmq4.NewPub(ctx, quiet), router: zmq4.NewRouter(ctx, quiet)}
	require.NoError(t, p.pub.Listen("tcp://127.0.0.1:0"))
	require.NoError(t, p.router.Listen("tcp://127.0.0.1:0"))
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if m, err := p.router.Recv(); err == nil {
				p.replay(m.Frames)
			}
		}
	})
	running.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			p.publish()
		}
	})
	t.Cleanup(func() {
		stop()
		_ = p.pub.Close()
		_ = p.router.Close()
		running.Wait()
	})
	return p
}

// publish sends events as vLLM has since 0.24.
func (p *publisher) publish(events ...map[string]any) {
	if events == nil {
		events = []map[string]any{}
	}
	payload := rig.Must(msgpack.Marshal([]any{1.5, events, 0}))
	p.mu.Lock()
	defer p.mu.Unlock()
	number := binary.BigEndian.AppendUint64(nil, uint64(len(p.batches)))
	p.batches = append(p.batches, payload)
	_ = p.pub.SendMulti(zmq4.NewMsgFrom([]byte("kv"), number, payload))
}

func (p *publisher) replay(request [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := binary.BigEndian.Uint64(request[2]); i < uint64(len(p.batches)); i++ {
		_ = p.router.SendMulti(zmq4.NewMsgFrom(request[0], nil, binary.BigEndian.AppendUint64(nil, i), p.batches[i]))
	}
	_ = p.router.SendMulti(zmq4.NewMsgFrom(request[0], nil, binary.BigEndian.AppendUint64(nil, 1<<64-1), nil))
}

// stored says that the blocks of these ids are cached, with hashes from first on.
func stored(first int, ids []uint32, adapter any, salt string) map[string]any {
	var extra []any // per block: what identifies it besides its tokens
	if salt != "" {
		extra = slices.Repeat([]any{nil}, len(ids)/16)
		extra[0] = []any{salt}
	}
	hashes := make([]int, len(ids)/16)
	for i := range hashes {
		hashes[i] = first + i
	}
	return map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": ids[:16*len(hashes)], "block_size": 16,
		"lora_id": nil, "medium": "GPU", "lora_name": adapter, "extra_keys": extra,
	}
}

// bytesOf are the token ids of an engine whose tokens are bytes.
func bytesOf(text string) (ids []uint32) {
	for _, b := range []byte(text) {
		ids = append(ids, uint32(b))
	}
	return ids
}

// Prompts go to the server that reports them as cached, even if they were never sent
// there through the gateway: also with another key, with none in the file, for an adapter, and with a salt.
func TestEngineEvents(t *testing.T) {
	var prompts []string
	blocks := 0
	p := startPublisher(t)
	salt := func(i int) string { return strings.Repeat("salt", i/24) } // of the last eight
	for i := range 32 {
		prompts = append(prompts, strings.Repeat(fmt.Sprint(i, " was not sent before. "), 40))
		ids := bytesOf(prompts[i])
		var adapter any
		if i/8 == 2 {
			adapter = "lora"
		}
		p.publish(stored(1000*i, ids, adapter, salt(i)))
		blocks += len(ids) / 16
	}
	var rendered atomic.Int64
	renderer := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rendered.Add(1)
		var chat struct{ Messages []struct{ Content string } }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&chat))
		assert.Equal(t, "/v1/chat/completions/render", r.URL.Path)
		assert.NoError(t, json.NewEncoder(w).Encode(map[string]any{"token_ids": bytesOf(chat.Messages[0].Content)}))
	}))
	one, two := newBackend(t), newBackend(t)

	path := filepath.Join(t.TempDir(), "gateway.yaml")
	write := func(key int, events string) {
		own := ""
		if key > 0 {
			own = fmt.Sprintf("hash_key: %064x\n", key)
		}
		text := fmt.Sprintf("listen: 127.0.0.1:0\npolicy: lmetric\n%smodels: {m: {tokens: &}, lora: {tokens: &}}\nendpoints:\n", own) +
			fmt.Sprintf("  - {url: %q, models: [m], adapters: [lora]}\n  - {url: %q, id: two, models: [m], adapters: [lora]%s}\n", one.URL, two.URL, events)
		text = strings.ReplaceAll(text, "&", "{render: "+renderer.URL+", within: 30s}")
		writeFile(t, path, text)
	}
	var c *command
	toTwo := func(prompts []string, model, salt string) bool { // half of them would get there by chance
		for _, prompt := range prompts {
			before := two.served()
			body := fmt.Sprintf(`{"model":%q,"cache_salt":%q,"messages":[{"role":"user","content":%q}]}`, model, salt, prompt)
			code, _ := postTo(c.url+"/v1/chat/completions", body)
			require.Equal(t, 200, code)
			if two.served() == before {
				return false
			}
		}
		return true
	}
	caches := func(text string) bool {
		status, page := get(c.admin + "/debug/endpick/caches")
		require.Equal(t, 200, status)
		return strings.Contains(page, text)
	}
	known := func() bool {
		return caches("<td>two</td><td>live</td><td>whole</td><td>" + fmt.Sprint(blocks) + "</td>")
	}
	events := fmt.Sprintf(", events: %q, replay: %q", p.pub.Addr(), "tcp://"+p.router.Addr().String())
	write(1, "")
	c = startConfig(t, path)
	require.NotContains(t, c.stderr.String(), "level=ERROR")
	write(1, events)
	c.reload(t, 1)
	require.Eventually(t, known, 30*time.Second, 5*time.Millisecond)
	require.True(t, toTwo(prompts[:8], "m", ""))
	require.Equal(t, int64(8), rendered.Load())

	write(2, events)
	c.reload(t, 2)
	require.Eventually(t, known, 30*time.Second, 5*time.Millisecond)
	require.True(t, toTwo(prompts[8:16], "m", ""), "the engine's blocks have names under the new key too")
	require.True(t, toTwo(prompts[:8], "m", ""))
	require.Equal(t, int64(16), rendered.Load(), "a model's token ids are remembered through a reload")

	write(0, events)
	c.reload(t, 3)
	require.Eventually(t, known, 30*time.Second, 5*time.Millisecond)
	require.True(t, toTwo(prompts[16:24], "lora", ""), "prompts and events have the key that is drawn at a start")
	require.True(t, toTwo(prompts[24:], "m", "salt"), "and the salt that the engine has")

	write(3, "")
	c.reload(t, 4)
	require.False(t, caches("<td>two</td>"), "nobody listens any more")
	c.ends(t, 0)
}

// Endpoints without an ID are known by the one the router gives them, which tells a
// server's ranks apart and shows no credentials.
func TestEventsOfEndpointsWithoutAnID(t *testing.T) {
	at, replay := startPublisher(t).pub.Addr().String(), nobody(t)
	zero, one := 0, 1
	s := defaultSettings()
	for _, e := range []endpointSettings{
		{URL: "http://10.0.0.1:8000", Rank: &zero}, {URL: "http://10.0.0.1:8000", Rank: &one}, {URL: "http://user:secret@10.0.0.2:8000"},
	} {
		e.Models, e.Events, e.Replay = []string{"m"}, at, replay
		s.Endpoints = append(s.Endpoints, e)
	}
	router := rig.Must(endpick.New(endpick.Config{Endpoints: s.endpoints()}))
	index := rig.Must(precise.New(precise.Config{}))
	inspector := rig.Must(scrape.NewInspector(scrape.InspectorConfig{Router: router}))
	h := hearing{router: router, inspector: inspector}
	require.NoError(t, h.follow(s, index))
	second, ok := kvevents.RankAddress(at, 1)
	require.True(t, ok)
	replays, _ := kvevents.RankAddress(replay, 1)
	of := map[string][2]string{}
	for id, f := range h.feeds {
		of[id] = [2]string{f.eventSettings.events, f.replay}
		ref, there := router.Ref(id)
		assert.True(t, there && ref == f.ref, id)
	}
	assert.Equal(t, map[string][2]string{"http://10.0.0.1:8000#0": {at, replay}, "http://10.0.0.1:8000#1": {second, replays}, "http://10.0.0.2:8000": {at, replay}}, of)

	before := h.feeds["http://10.0.0.1:8000#1"]
	s.Endpoints = s.Endpoints[1:]
	require.NoError(t, router.Remove("http://10.0.0.1:8000#0"))
	require.NoError(t, h.follow(s, index))
	assert.Len(t, h.feeds, 2, "who is gone is heard no more")
	assert.Len(t, index.Stats().Feeds, 2)
	assert.Same(t, before, h.feeds["http://10.0.0.1:8000#1"], "and the others as before")

	require.NoError(t, router.Remove("http://10.0.0.1:8000#1"))
	require.NoError(t, router.Add(s.endpoints()[0]))
	require.NoError(t, h.follow(s, index))
	ref, _ := router.Ref("http://10.0.0.1:8000#1")
	assert.Equal(t, ref, h.feeds["http://10.0.0.1:8000#1"].ref, "who comes back has a cache of its own")

	s.Endpoints[0].Models[0] = "n"
	require.NoError(t, h.follow(s, index))
	assert.Equal(t, "n", h.feeds["http://10.0.0.1:8000#1"].model)
	s.Endpoints[0].Events = "nonsense"
	require.Error(t, h.follow(s, index))
	assert.Len(t, index.Stats().Feeds, 1)
	h.end()
	assert.Empty(t, index.Stats().Feeds, "nothing is left")
	assert.Empty(t, (&heardStatus{Feed: precise.FeedStats{Confirmed: 1, Unconfirmed: 99}}).Hint())
	assert.Contains(t, (&heardStatus{Feed: precise.FeedStats{Unconfirmed: enoughPrompts}}).Hint(), "none has come")
}

// A vLLM says itself where it publishes. If no prompt is ever what its events name, the page, the
// metrics and one line in the log say so, and what is probably wrong.
func TestEventsThatMatchNothing(t *testing.T) {
	for want, rendered := range map[string]string{ // the last is right
		"prompts have other token ids than in the engine": `{"token_ids":[` + strings.Repeat("7,", 40) + `7]}`,
		"requests come without token ids":                 `{}`,
		"":                                                `{"token_ids":[` + strings.Repeat("7,", 40) + `7]}`,
	} {
		t.Run(want, func(t *testing.T) {
			p := startPublisher(t)
			port := func(s zmq4.Socket) string { return fmt.Sprint(s.Addr().(*net.TCPAddr).Port) }
			id := map[bool]uint32{true: 7, false: 8}[want == ""]
			p.publish(stored(1, slices.Repeat([]uint32{id}, 32), nil, ""))
			server := serving(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, map[string]string{
					"/metrics":                    "vllm:num_requests_running 0\n",
					"/v1/models":                  `{"data":[{"id":"m"}]}`,
					"/kv_event_sources":           `{"0":{"publisher":"zmq","endpoint":"tcp://*:` + port(p.pub) + `","replay_endpoint":"tcp://*:` + port(p.router) + `"}}`,
					"/v1/chat/completions/render": rendered,
					"/v1/chat/completions":        `{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":41,"completion_tokens":1}}`,
				}[r.URL.Path])
			}))
			var log rig.Output
			text := fmt.Sprintf("models: {m: {tokens: {render: %q, within: 30s}}}\nendpoints: [{url: %q}]\n", server.URL, server.URL)
			g := loggingGateway(t, &log, parsed(text))
			ask := func() {
				require.Equal(t, 200, askFor(g, "/v1/chat/completions", chatWith(strings.Repeat("word ", 40))).Code)
			}
			require.Eventually(t, func() bool {
				all := g.hearing.status()
				return len(all) == 1 && all[0].State == kvevents.Live && all[0].Blocks == 2
			}, 30*time.Second, 5*time.Millisecond)
			at := *g.router.Endpoints()[0].Candidate.Endpoint
			for more, want := range map[string]bool{"": true, "trust_headers: true": false, "trust_headers: true\nshared_cache: true": true} {
				other := parsed(text + more)
				_, found := other.eventsOf(&at, g.inspector)
				assert.Equal(t, []bool{want, want}, []bool{found, other.hasEvents()}, more)
			}
			other := parsed("endpoints: [{url: " + server.URL + "}]")
			_, found := other.eventsOf(&at, g.inspector)
			assert.Equal(t, []bool{false, false}, []bool{found, other.hasEvents()}, "without token ids there is no use")
			at.Models = []string{"m", "n"}
			_, found = parsed(text).eventsOf(&at, g.inspector)
			assert.False(t, found, "it does not say whose events they are")
			for range enoughPrompts {
				ask()
			}
			require.Eventually(t, func() bool {
				ask()
				f := g.hearing.status()[0].Feed
				return f.Confirmed+f.Unconfirmed+f.Textual > enoughPrompts
			}, 30*time.Second, 100*time.Millisecond)
			if want == "" {
				assert.NotContains(t, cachesOf(t, g), "match no prompt")
				assert.Regexp(t, `endpick_kv_events_prompts_total\{endpoint="\S+",result="confirmed"\} [1-9]`, scrapeMetrics(t, g.admin))
				return
			}
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "KV-cache events match no prompt") }, 30*time.Second, 10*time.Millisecond)
			time.Sleep(1100 * time.Millisecond)
			assert.Equal(t, 1, strings.Count(log.String(), want), "once")
			assert.Contains(t, cachesOf(t, g), "they match no prompt: "+want)
			page := scrapeMetrics(t, g.admin)
			assert.Contains(t, page, `result="confirmed"} 0`)
			assert.Contains(t, page, fmt.Sprintf(`result="no token ids"} %d`, g.hearing.status()[0].Feed.Textual))
			assert.Regexp(t, `endpick_kv_events_total\{endpoint="\S+"\} [1-9]`, page)
		})
	}
}
