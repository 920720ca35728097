package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A short soak keeps all promises and exercises everything.
func TestSoak(t *testing.T) {
	var out, failures bytes.Buffer
	args := strings.Fields("soak -duration 3s -leases 100000 -streams 40 -clients 2 -pace 100ms")
	require.Zero(t, command(t.Context(), args, &out, &failures), "%s\n%s", &out, &failures)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.Regexp(t, `^ok: 100000 leases in .* requests on [34] ways in .*, 0 lost, `, lines[len(lines)-1])
	for _, row := range []string{"ReverseProxy", "Caddy", "dispatcher", "directly", "answers 503", "breaks off"} {
		assert.Contains(t, out.String(), "\n| "+row+" |")
	}
}

// What a client has seen is explained by what servers and router know.
func TestFates(t *testing.T) {
	stays, killed := &server{id: "stays"}, &server{id: "killed"}
	began := time.Unix(1000, 0)
	killed.downs = []span{{began.Add(time.Second), began.Add(2 * time.Second)}}
	good := strings.Repeat(event, tokens) + finish + done
	lease := func(ids ...string) map[string]int {
		m := map[string]int{}
		for _, id := range ids {
			m[id]++
		}
		return m
	}
	for _, tc := range []struct {
		name     string
		seen     seen
		stream   bool
		leases   map[string]int
		attempts []attempt
		want     fate
	}{
		{"whole stream", seen{status: 200, body: []byte(good)}, true, lease("stays"), []attempt{{"stays", none, true}}, answered},
		{"whole answer", seen{status: 200, body: []byte(answer)}, false, lease("stays"), []attempt{{"stays", none, true}}, answered},
		{"a word less", seen{status: 200, body: []byte(good[len(event):])}, true, lease("stays"), []attempt{{"stays", none, true}}, puzzled},
		{"without its end", seen{status: 200, body: []byte(strings.TrimSuffix(good, done))}, true, lease("stays"), []attempt{{"stays", none, true}}, puzzled},
		{"cut by the server", seen{status: 200, body: []byte(event), err: errors.New("cut")}, true, lease("stays"), []attempt{{"stays", cutStream, false}}, broken},
		{"cut by the gateway", seen{status: 200, body: []byte(event), err: errors.New("cut")}, true, lease("stays"), []attempt{{"stays", none, false}}, puzzled},
		{"cut by a kill", seen{status: 200, body: []byte(event), err: errors.New("cut")}, true, lease("killed"), []attempt{{"killed", none, false}}, broken},
		{"each attempt fails", seen{status: 503}, true, lease("stays", "killed"), []attempt{{"stays", overloaded, false}}, failed},
		{"one attempt went well", seen{status: 502}, true, lease("stays", "stays"), []attempt{{"stays", overloaded, false}, {"stays", none, true}}, lost},
		{"never routed", seen{status: 503}, true, nil, nil, lost},
		{"routed, and never sent", seen{status: 502}, true, lease("stays"), nil, lost},
		{"no answer at all", seen{err: errors.New("reset")}, true, lease("stays"), []attempt{{"stays", reset, false}}, failed},
		{"nothing in an answer", seen{status: 200}, true, lease("stays"), []attempt{{"stays", none, true}}, lost},
		{"refused", seen{status: 404}, true, nil, nil, lost},
		{"left", seen{status: 200, left: true}, true, lease("stays"), nil, left},
		{"waits in vain", seen{late: true, left: true}, true, lease("stays"), nil, lost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &clients{way: &way{}, servers: map[string]*server{"stays": stays, "killed": killed}}
			c.settle(&manner{stream: tc.stream}, &tc.seen, &trace{began: began, leases: tc.leases, attempts: tc.attempts})
			for f := range fates {
				if f == refused {
					continue // a valid request that is refused counts twice
				}
				assert.EqualValues(t, map[bool]int{true: 1}[f == tc.want], c.way.tally.fates[f].Load(), fateNames[f])
			}
			assert.Equal(t, tc.want >= lost, len(c.way.tally.wrong) > 0)
		})
	}
}

func TestLeftovers(t *testing.T) {
	of := func(before, after held) []error {
		r := &report{before: before, after: after}
		r.examineHeld()
		return r.errs
	}
	assert.Empty(t, of(held{100e6, 10}, held{109e6, 10}))
	assert.Empty(t, of(held{1e6, 10}, held{5e6, 9}))
	assert.ErrorContains(t, errors.Join(of(held{100e6, 10}, held{111e6, 10})...), "the heap has grown from 100.0 MB to 111.0 MB")
	assert.ErrorContains(t, errors.Join(of(held{100e6, 10}, held{100e6, 11})...), "there were 10 goroutines, and are 11")

	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}}}))
	lease := rig.Must(router.Route(endpick.Request{InputTokens: 5}))
	assert.ErrorContains(t, account(router), "1 leases were opened and 0 closed")
	assert.ErrorContains(t, account(router), "is in flight at a")
	lease.Done(endpick.Outcome{})
	assert.NoError(t, account(router))

	r := &report{errs: []error{errors.New("x")}}
	var out bytes.Buffer
	r.write(&out)
	assert.Contains(t, out.String(), "BROKEN, 1 promises")
}

// Faults occur at their configured rates.
func TestFaults(t *testing.T) {
	var did [faults]int
	for i := range uint64(1000) {
		did[draw(i)]++
	}
	for f := slowly; f < faults; f++ {
		assert.NotEmpty(t, about[f].name)
		assert.Equal(t, about[f].thousand, did[f], about[f].name)
	}
}

var update = flag.Bool("update", false, "write the tables of docs/clients.md")

// page contains the tables, after this line.
const (
	page = "../../../../docs/clients.md"
	mark = " -run Ways ./live -update -->\n"
)

// All ways differ exactly as docs/clients.md says, and leave nothing behind.
func TestWays(t *testing.T) {
	r := rig.Must(suite.Compare(t.Context(), comparedWays(), suite.Scenarios(), io.Discard))
	require.NoError(t, r.Err())
	head, tables, ok := strings.Cut(string(rig.Must(os.ReadFile(page))), mark)
	require.True(t, ok, "%s has no place for the tables", page)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(head+mark+"\n"+r.Markdown()), 0o644))
		return
	}
	assert.Equal(t, "\n"+r.Markdown(), tables, "run with -update")
}

func TestWaysRuns(t *testing.T) {
	var out strings.Builder
	require.Zero(t, command(t.Context(), []string{"ways", "-run", "n = 2", "-v"}, &out, io.Discard))
	assert.Contains(t, out.String(), "ok: 2 scenarios, directly and on 2 ways")
	assert.Contains(t, out.String(), "chat, n = 2, Caddy: response header Via: \"1.1 Caddy\", but directly none\n")
	assert.Equal(t, 1, command(t.Context(), []string{"ways", "-run", "unheard of"}, &out, &out))
	assert.Contains(t, out.String(), "ways: no scenario")
}

func TestArguments(t *testing.T) {
	for _, args := range []string{
		"ways more", "ways -v=x",
		"soak more", "soak -duration 0s", "soak -pace 1h", "soak -servers 4", "soak -leases -1", "soak -clients 0", "soak -seed x",
	} {
		var out, failures strings.Builder
		assert.Equal(t, 2, command(t.Context(), strings.Fields(args), &out, &failures), args)
		assert.Contains(t, failures.String(), strings.Fields(args)[0]+": ", args)
	}
	for _, verb := range []string{"ways", "soak"} {
		assert.Zero(t, command(t.Context(), []string{verb, "-help"}, new(strings.Builder), new(strings.Builder)))
	}
	var failures strings.Builder
	assert.Equal(t, 2, command(t.Context(), nil, new(strings.Builder), &failures))
	assert.Contains(t, failures.String(), "want ways or soak")
}
