package sim

import (
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
)

// BlockTokens is the size of the prefix blocks of all workloads.
const BlockTokens = endpick.DefaultBlockTokens

// Workload is a body of work that can be done again and again.
type Workload interface {
	// Start begins the work from its beginning. Equal seeds give equal work,
	// as far as the answers come back equally.
	Start(seed uint64) (Source, error)
}

// Source gives out the requests of one run in order of arrival. It need not be
// safe for concurrent use.
type Source interface {
	// Next is the time at which the next request arrives, since the start of the
	// run; false if there is none, or none before some request in flight ends.
	Next() (time.Duration, bool)
	// Take returns that request and goes on to the one after it.
	Take() Request
	// Done tells that a request has ended: completed, rejected or lost. A session
	// may then go on.
	Done(r *Request, now time.Duration)
}

// Request is one request of a workload.
type Request struct {
	// Arrival is the time at which it comes to the router. A turn that had to wait
	// for the answer to the one before it arrives when it is sent.
	Arrival      time.Duration
	InputTokens  int
	OutputTokens int
	// Blocks are the chained hashes of the full blocks of BlockTokens tokens of the
	// prompt and, where they are known, of the output after it: those are for the
	// next turn to find. The simulator keeps the slice and does not write to it.
	Blocks []uint64
	// SystemTokens of the prompt, at its head, are a system prompt.
	SystemTokens int

	Whole           bool // its response does not stream
	Model           string
	Tenant, Session string
	// ExpectedOutputTokens is the output's length as the router sees it. Zero:
	// nothing.
	ExpectedOutputTokens int
	Priority             int
	// Class names the SLO class for the report. Empty: "default" if SLO asks for
	// anything, else none.
	Class string
	SLO   endpick.SLO

	// Handle is the source's own.
	Handle int
}

func (r *Request) class() string {
	if r.Class == "" && r.SLO.Asked() {
		return "default"
	}
	return r.Class
}

// promptBlocks are the blocks that lie in the prompt.
func (r *Request) promptBlocks() []uint64 {
	return r.Blocks[:min(len(r.Blocks), max(0, r.InputTokens)/BlockTokens)]
}

// Given is a workload of given requests, in order of arrival, in an open loop.
type Given []Request

// Start implements [Workload].
func (g Given) Start(uint64) (Source, error) { return &g, nil }

// Next, Take and Done implement [Source].
func (g *Given) Next() (time.Duration, bool) {
	if len(*g) == 0 {
		return 0, false
	}
	return (*g)[0].Arrival, true
}

func (g *Given) Take() Request {
	r := (*g)[0]
	*g = (*g)[1:]
	return r
}

func (*Given) Done(*Request, time.Duration) {}

// chain extends a chain of block hashes by a block with this content.
func chain(hash, content uint64) uint64 { return engine.Mix(hash ^ engine.Mix(content)) }
