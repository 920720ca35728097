package transport_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	engines "github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/modelserver"
	"github.com/endpick/endpick/internal/lab/race"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
)

// network is hosts by name within a synctest bubble, HTTP over net.Pipe: time
// advances only when all goroutines wait.
type network map[string]*pipes

func (n network) listen(host string) net.Listener {
	n[host] = &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	return n[host]
}

func (n network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	p := n[strings.TrimSuffix(address, ":80")]
	client, server := net.Pipe()
	select {
	case p.accept <- server:
		return client, nil
	case <-p.closed:
		return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Two tenants share two model servers, over HTTP. One sends more than ten times its
// share; the other's TTFT p95 stays within a fifth of what it is alone.
func TestTenantsKeepTheirShareOverHTTP(t *testing.T) {
	if race.Enabled {
		t.Skip("the latencies are the same, and take long to come")
	}
	const (
		share    = 3.0 // requests a second
		tokens   = 1000
		output   = 32
		duration = 20 * time.Second
	)
	limits := quota.Limits{Rate: 1.2 * share * (tokens + 2*output), Burst: 5 * share * (tokens + 2*output)}
	type result struct {
		ttft            []time.Duration
		served, refused int
	}
	run := func(t *testing.T, limited bool, rates map[string]float64) map[string]*result {
		results := map[string]*result{}
		synctest.Test(t, func(t *testing.T) {
			profile, err := engines.ProfileByName("llama-3.1-8b-a100")
			require.NoError(t, err)
			hosts := network{}
			config := all.LMetric()
			config.Seed = 1
			for _, host := range []string{"a", "b"} {
				server, err := modelserver.New(modelserver.Config{Engine: engines.Config{Profile: profile}})
				require.NoError(t, err)
				go server.Serve(hosts.listen(host))
				defer server.Close()
				config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: host, Address: host + ":80"})
			}
			if limited {
				q, err := quota.New(quota.Config{Limits: func(string) quota.Limits { return limits }})
				require.NoError(t, err)
				config.Policy.Admitters = append(config.Policy.Admitters, q)
			}
			router, err := endpick.New(config)
			require.NoError(t, err)
			base := &http.Transport{DialContext: hosts.dial, MaxIdleConnsPerHost: 1000}
			defer base.CloseIdleConnections()
			tr, err := transport.New(transport.Config{Router: router, Base: base, Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
				req.Tenant = in.Header.Get("X-Tenant")
			}})
			require.NoError(t, err)
			gateway := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: &httputil.ReverseProxy{
				Rewrite: func(*httputil.ProxyRequest) {}, Transport: tr, ErrorHandler: transport.ErrorHandler, FlushInterval: -1,
			}}
			go gateway.Serve(hosts.listen("gateway"))
			defer gateway.Close()
			clients := &http.Client{Transport: &http.Transport{DialContext: hosts.dial, MaxIdleConnsPerHost: 1000}}
			defer clients.CloseIdleConnections()

			var all sync.WaitGroup
			var mu sync.Mutex
			ask := func(tenant string, n int, to *result) {
				text := strings.Repeat(fmt.Sprintf("%s asks %06d. ", tenant, n), 4*tokens/20)
				body := `{"model":"demo-8b","stream":true,"max_tokens":` + strconv.Itoa(output) + `,"messages":[{"role":"user","content":"` + text + `"}]}`
				req, _ := http.NewRequest("POST", "http://gateway/v1/chat/completions", strings.NewReader(body))
				req.Header.Set("X-Tenant", tenant)
				start := time.Now()
				resp, err := clients.Do(req)
				if !assert.NoError(t, err) {
					return
				}
				defer resp.Body.Close()
				if resp.StatusCode == http.StatusTooManyRequests {
					after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
					assert.NoError(t, err)
					assert.Positive(t, after)
					io.Copy(io.Discard, resp.Body)
					mu.Lock()
					defer mu.Unlock()
					to.refused++
					return
				}
				assert.Equal(t, 200, resp.StatusCode)
				first := make([]byte, 1)
				_, err = io.ReadFull(resp.Body, first)
				took := time.Since(start)
				assert.NoError(t, err)
				_, err = io.Copy(io.Discard, resp.Body)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				to.served++
				to.ttft = append(to.ttft, took)
			}
			for tenant, rate := range rates {
				to := &result{}
				results[tenant] = to
				all.Go(func() {
					// Gaps are evenly spread from almost none to twice the mean.
					for n := range int(rate * duration.Seconds()) {
						_, share := math.Modf(float64(n)*math.Phi + float64(len(tenant)))
						time.Sleep(time.Duration(2 * share / rate * float64(time.Second)))
						all.Go(func() { ask(tenant, n, to) })
					}
				})
			}
			all.Wait()
			synctest.Wait()
			assert.Zero(t, router.Stats().OpenLeases)
		})
		for _, r := range results {
			slices.Sort(r.ttft)
		}
		return results
	}
	p95 := func(r *result) time.Duration { return r.ttft[len(r.ttft)*95/100] }

	alone := run(t, true, map[string]float64{"quiet": share})["quiet"]
	both := run(t, true, map[string]float64{"quiet": share, "louder": 10 * share})
	quiet, loud := both["quiet"], both["louder"]
	t.Logf("quiet's TTFT p95: alone %v, beside the loud one %v; loud: %d served, %d refused", p95(alone), p95(quiet), loud.served, loud.refused)
	assert.LessOrEqual(t, p95(quiet), p95(alone)*12/10)
	assert.Zero(t, alone.refused+quiet.refused)
	assert.Equal(t, int(share*duration.Seconds()), quiet.served)
	assert.Greater(t, loud.served, int(share*duration.Seconds()))
	assert.Less(t, loud.served, 2*int(share*duration.Seconds()))
	assert.Greater(t, loud.refused, 4*loud.served)
	if open := run(t, false, map[string]float64{"quiet": share, "louder": 10 * share})["quiet"]; assert.NotEmpty(t, open.ttft) {
		t.Logf("without a quota %v", p95(open))
		assert.Greater(t, p95(open), 2*p95(alone))
	}
}
