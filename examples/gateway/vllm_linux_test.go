package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/kvevents"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startVLLMs starts n engines with a small queue. ENDPICK_VLLM is a directory with venv, which has
// a vLLM for CPUs, and tiny, a model of random weights.
func startVLLMs(t *testing.T, n int) []*rig.Process {
	dir := os.Getenv("ENDPICK_VLLM")
	if dir == "" {
		t.Skip("ENDPICK_VLLM is not set: no vLLM to test with")
	}
	return startAll(t, n, func(int) (*rig.Process, error) {
		events, replay := rig.Must(rig.FreePort()), rig.Must(rig.FreePort())
		return rig.Start(func(port int) *exec.Cmd {
			cmd := exec.Command(filepath.Join(dir, "venv/bin/vllm"), "serve", "./tiny", "--served-model-name", "tiny",
				"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--max-model-len", "8192", "--enforce-eager", "--enable-prefix-caching",
				"--enable-prompt-tokens-details", "--dtype", "bfloat16", "--max-num-seqs", "4", "--max-num-queued-reqs", "8", "--kv-events-config",
				fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, events, replay))
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1",
				"MKL_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "TOKENIZERS_PARALLELISM=false", "VLLM_HOST_IP=127.0.0.1", "VLLM_LOOPBACK_IP=127.0.0.1")
			return cmd
		})
	})
}

// Three vLLMs behind a gateway that is only told where they are, and who tokenizes.
func TestVLLM(t *testing.T) {
	engines := startVLLMs(t, 3)
	text := "models: {tiny: {tokens: {render: " + engines[0].URL() + ", within: 30s}}}\nendpoints:\n"
	for i, e := range engines {
		text += fmt.Sprintf("  - {url: %q, id: e%d}\n", e.URL(), i)
	}
	s := parsed(t, text)
	log := &lockedBuffer{}
	g := loggingGateway(t, log, s)
	ended := make(chan recording.Request, 1000)
	g.ended = func(r recording.Request) { ended <- r }
	front := httptest.NewServer(g)
	t.Cleanup(front.Close)
	client := func(api string, whole bool) *traffic.Client {
		c := llamaClient(t, front.URL, api, whole)
		c.Model = "tiny"
		return c
	}
	heard := func(ok func(*heardStatus) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			all := g.hearing.status()
			for i := range all {
				if !ok(&all[i]) {
					return false
				}
			}
			return len(all) == len(engines)
		}, time.Minute, 10*time.Millisecond, "%+v", g.hearing.status())
	}
	idle := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, e := range engines {
				_, page := get(t, e.URL()+"/metrics")
				if !regexp.MustCompile(`(?m)^vllm:num_requests_running\{.*\} 0\.0$`).MatchString(page) {
					return false
				}
			}
			return g.router.Stats().OpenLeases == 0
		}, time.Minute, 50*time.Millisecond)
	}
	random := rand.New(rand.NewPCG(1, 2))
	prompt := func(words int) []traffic.Message {
		return []traffic.Message{{Role: "user", Content: traffic.Words(random, words)}}
	}
	// ask asks again where all engines are full, as clients do. A vLLM whose queue fills while a stream
	// begins says so under status 200, or not at all.
	full := regexp.MustCompile(`^503 |^502 |^no text came$|^the stream broke off$`)
	ask := func(c *traffic.Client, messages []traffic.Message, output int) traffic.Sample {
		for until := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
			a := c.Ask(t.Context(), time.Now(), messages, output)
			if a.Err == nil || !full.MatchString(a.Err.Error()) || time.Now().After(until) {
				return a
			}
		}
	}
	heard(func(h *heardStatus) bool { return h.State == kvevents.Live })

	t.Run("conversations find what is expected", func(t *testing.T) {
		c := client("chat", true)
		said, exact, asked := make([][]traffic.Message, 4), 0, 0
		for turn := range 4 {
			for i := range said {
				said[i] = append(said[i], traffic.Message{Role: "user", Content: traffic.Words(random, 150)})
				fields := c.API.Body(said[i], 24)
				fields["model"] = c.Model
				ids, _ := g.tokens(t.Context(), &endpick.Request{Model: "tiny"}, c.API.Path, rig.Must(json.Marshal(fields)))
				require.NotEmpty(t, ids)
				expected := map[string]int{}
				req := endpick.Request{Blocks: prefix.AppendTokens(nil, prefix.Scope{Key: s.hashKey, Model: "tiny"}.Seed(), ids), Exact: true, InputTokens: len(ids)}
				req = req.At(time.Now(), 1, 1)
				var candidates []endpick.Candidate
				for _, e := range g.router.Endpoints() {
					candidates = append(candidates, e.Candidate)
				}
				g.policies.precise.Match(&req, candidates)
				for _, at := range candidates {
					expected[at.Endpoint.ID] = at.PrefixTokens
				}
				a := c.Ask(t.Context(), time.Now(), said[i], 24)
				require.NoError(t, a.Err)
				r := <-ended
				require.Equal(t, len(ids), a.PromptTokens)
				asked++
				if expected[r.Endpoint] == a.CachedTokens {
					exact++
				}
				if turn > 0 {
					assert.Positive(t, a.CachedTokens)
				}
				said[i] = append(said[i], traffic.Message{Role: "assistant", Content: a.Text})
				time.Sleep(1200 * time.Millisecond) // longer than events take
			}
		}
		t.Logf("%d of %d as expected", exact, asked)
		assert.GreaterOrEqual(t, exact, asked-1)
		confirmed := uint64(0)
		for _, h := range g.hearing.status() {
			confirmed += h.Feed.Confirmed
			assert.Zero(t, h.Feed.Unconfirmed+h.Feed.Textual)
		}
		assert.GreaterOrEqual(t, confirmed, uint64(asked-1))
	})

	t.Run("clients leave", func(t *testing.T) {
		for _, api := range []string{"chat", "completions", "messages", "responses"} {
			for _, whole := range []bool{false, true} {
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				a := client(api, whole).Ask(ctx, time.Now(), prompt(50), 6000)
				leave()
				require.ErrorIs(t, a.Err, context.DeadlineExceeded)
				idle()
			}
		}
	})

	t.Run("one is killed", func(t *testing.T) {
		var group sync.WaitGroup
		for i := range 6 {
			c, messages := client("chat", i%2 == 0), prompt(50)
			group.Go(func() {
				assert.NoError(t, c.Ask(t.Context(), time.Now(), messages, 1000).Err, "streams go on elsewhere")
			})
		}
		require.Eventually(t, func() bool { return g.router.Stats().OpenLeases == 6 }, time.Minute, time.Millisecond)
		require.Eventually(t, func() bool { // or nobody could tell that it is another
			all := g.hearing.status()
			return len(all) == 3 && all[2].Batches > 0
		}, 3*time.Minute, 10*time.Millisecond)
		engines[2].Kill()
		group.Wait()
		t.Logf("%+v", g.transport.Stats())
		require.NoError(t, engines[2].Restart())
		heard(func(h *heardStatus) bool {
			return h.State == kvevents.Live && (h.Endpoint == "e2") == (h.Restarts == 1)
		})
		for range 6 {
			require.NoError(t, client("chat", false).Ask(t.Context(), time.Now(), prompt(50), 4).Err)
		}
		idle()
	})

	t.Run("too many at once", func(t *testing.T) {
		before := len(log.String())
		var group sync.WaitGroup
		for i := range 60 {
			c, messages := client([]string{"chat", "completions", "messages", "responses"}[i%4], i%8 < 4), prompt(50)
			group.Go(func() { assert.NoError(t, ask(c, messages, 20).Err) })
		}
		group.Wait()
		assert.NotContains(t, log.String()[before:], "state=out", "who is full does not fail")
		idle()
	})
}
