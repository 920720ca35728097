package health_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/health"
)

// Servers that refuse connections are dialled ten times a second, however many they are, as long as
// others live. One that comes back is found at once where no other lives.
func TestManyDeadAreSeldomChecked(t *testing.T) {
	for dead, every := range map[int]time.Duration{1: 2 * time.Second, 20: 2 * time.Second, 200: 20 * time.Second, 1000: 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			config := endpick.Config{}
			for i := range dead + 1 {
				config.Endpoints = append(config.Endpoints, endpoints(fmt.Sprint(i))...)
			}
			router := rig.Must(endpick.New(config))
			var mu sync.Mutex
			asked := map[string]int{}
			lives := "0"
			m := rig.Must(health.New(health.Config{Router: router, Client: &http.Client{Transport: pages(func(in *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				asked[in.URL.Host]++
				if in.URL.Host == lives {
					return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
				}
				return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			})}}))
			took := func(host string) int {
				mu.Lock()
				defer mu.Unlock()
				n := asked[host]
				clear(asked)
				return n
			}
			stop := running(t, m)
			time.Sleep(61 * time.Second)
			took("")
			time.Sleep(2 * time.Minute)
			assert.InDelta(t, 2*time.Minute/every, took("1"), 1, "%d", dead)
			time.Sleep(2 * time.Minute)
			assert.Equal(t, 60, took("0"), "who lives")
			alive, _ := m.Alive()
			assert.Equal(t, 1, alive)
			m.Check(t.Context())
			assert.Equal(t, 1, took("1"), "all are checked at once")

			mu.Lock()
			lives = ""
			mu.Unlock()
			time.Sleep(5 * time.Second)
			mu.Lock()
			lives = "1"
			mu.Unlock()
			time.Sleep(2500 * time.Millisecond) // between two checks
			alive, _ = m.Alive()
			assert.Equal(t, 1, alive, "it is back, of %d", dead)
			stop()
		})
	}
}
