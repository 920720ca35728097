package traffic

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func stepWorkload() Workload {
	return Workload{Duration: 3 * time.Second, Rate: 8, Groups: 2, SystemTokens: 200, QuestionTokens: 40, OutputTokens: 8, Turns: 3, Think: time.Hour, Seed: 1}
}

// robin sends requests to the servers in turn, in order of arrival, and records
// where.
func robin(sent *[]string) Opener {
	return func(f *Fleet) (*Front, error) {
		var mu sync.Mutex
		open := 0
		base := &http.Transport{}
		s := httptest.NewServer(&httputil.ReverseProxy{Transport: base, Rewrite: func(r *httputil.ProxyRequest) {
			mu.Lock()
			defer mu.Unlock()
			m := f.Members[len(*sent)%len(f.Members)]
			*sent = append(*sent, m.ID)
			r.SetURL(&url.URL{Scheme: "http", Host: m.Address})
			// A server that answers at once would end the body before it is sent whole.
			body, _ := io.ReadAll(r.In.Body)
			r.Out.Body = io.NopCloser(bytes.NewReader(body))
		}})
		return &Front{Client: NewClient(s.URL), Leases: func() int { return open }, Stop: func() error {
			s.Close()
			base.CloseIdleConnections()
			return nil
		}}, nil
	}
}

// In step, requests arrive one after the other, in the same order on any machine, and
// all turns are played.
func TestInStep(t *testing.T) {
	var first, second []string
	w := stepWorkload()
	p, err := PairHits(t.Context(), w, 1, 3, 4096, robin(&first), robin(&second))
	require.NoError(t, err)
	assert.Len(t, first, 3*len(w.Conversations()))
	assert.Equal(t, first, second)
	assert.Greater(t, p.A[0], 0.1)
}

// A failure before a request reaches a server is reported, and nothing waits for it.
func TestInStepFails(t *testing.T) {
	down := func(f *Fleet) (*Front, error) {
		s := httptest.NewServer(http.NotFoundHandler())
		return &Front{Client: NewClient(s.URL), Leases: func() int { return 0 }, Stop: func() error { s.Close(); return nil }}, nil
	}
	_, err := PairHits(t.Context(), stepWorkload(), 1, 3, 4096, down, down)
	require.ErrorContains(t, err, "request 0 of a step has reached no server: 404 Not Found")
	wrong := errors.New("wrong")
	_, err = PairHits(t.Context(), stepWorkload(), 1, 3, 4096, func(*Fleet) (*Front, error) { return nil, wrong }, down)
	require.ErrorIs(t, err, wrong)
}

// Worked out by hand: differences of 1, 2, 3 and 2 points have a mean of 2 and a
// deviation of 0.816; 3.182 times half of that is 1.299.
func TestPaired(t *testing.T) {
	p := Paired{A: []float64{0.91, 0.92, 0.93, 0.92}, B: []float64{0.90, 0.90, 0.90, 0.90}}
	d, half := p.Difference()
	assert.InDelta(t, 0.02, d, 1e-12)
	assert.InDelta(t, 0.01299, half, 1e-5)
	assert.Equal(t, "92.0 % and 90.0 %, +2.00 points apart (95 %: ± 1.30; median +2.00 of 4 pairs)", p.String())
	spoilt := Paired{A: []float64{0.91, 0.70, 0.90}, B: []float64{0.90, 0.90, 0.90}}
	assert.InDelta(t, 0, spoilt.Typical(), 1e-12)
	assert.InDelta(t, 0.02, p.Typical(), 1e-12)
	one := Paired{A: []float64{0.5}, B: []float64{0.6}}
	d, half = one.Difference()
	assert.InDelta(t, -0.1, d, 1e-12)
	assert.True(t, math.IsInf(half, 1))
	assert.Equal(t, 2.093, student(19))
	assert.Equal(t, 2.086, student(200))
}
