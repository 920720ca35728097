package sim

import (
	"cmp"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
)

// Conversations is a generated workload of users in groups. All users of a group
// share a system prompt. Each turn of a user sends a question after the whole
// conversation so far, including answers.
type Conversations struct {
	Groups        int
	UsersPerGroup int
	SystemTokens  int
	Question      Length
	Output        Length
	// Turns is the length of a conversation; after that, the user begins a new one. 0
	// is 5, as in the appendix of the predicted-latency paper.
	Turns int

	// Arrivals is when turns arrive, in an open loop; each goes to a random user
	// who is not waiting for an answer, or waits for one.
	Arrivals Arrivals

	// Requests ends the work after so many; 0: the Arrivals end it.
	Requests int
	// Duration ends the work at that time. 0: it does not.
	Duration time.Duration

	// Tenant owns all requests. Empty: each group is a tenant.
	Tenant string
}

// Start implements [Workload].
func (c Conversations) Start(seed uint64) (Source, error) {
	c.Turns = cmp.Or(c.Turns, 5)
	stages := c.Arrivals.Stages
	if len(stages) == 0 || stages[0].Duration == 0 && c.Requests == 0 && c.Duration == 0 {
		return nil, &ConfigError{"Conversations", "have no Arrivals or do not end: Requests, Duration or stages with a Duration are needed"}
	}
	s := &conversationSource{
		Conversations: c,
		seed:          engine.Mix(seed),
		lengths:       rand.New(rand.NewPCG(seed, 1)),
		choice:        rand.New(rand.NewPCG(seed, 2)),
		clock:         newClock(c.Arrivals, rand.New(rand.NewPCG(seed, 3))),
		users:         make([]user, c.Groups*c.UsersPerGroup),
		idle:          make([]int32, c.Groups*c.UsersPerGroup),
		systems:       make([][]uint64, c.Groups),
		tenants:       make([]string, c.Groups),
	}
	for i := range s.idle {
		s.idle[i] = int32(i)
	}
	for g := range s.systems {
		s.tenants[g] = cmp.Or(c.Tenant, "group-"+strconv.Itoa(g))
		s.systems[g] = extend(nil, c.SystemTokens/BlockTokens, engine.Mix(s.seed^uint64(g)))
	}
	s.next, s.more = s.clock.next()
	return s, nil
}

// At implements [Paced].
func (c Conversations) At(p Pace) (Workload, error) {
	if err := p.check(c.HasArrivals()); err != nil {
		return nil, err
	}
	if p.Rate > 0 {
		c.Arrivals = ConstantRate(p.Rate)
	} else if p.RateScale > 0 {
		c.Arrivals = c.Arrivals.Scaled(p.RateScale)
	}
	c.Requests, c.Duration = p.Requests, p.Duration
	return c, nil
}

// HasArrivals implements [Paced].
func (c Conversations) HasArrivals() bool { return len(c.Arrivals.Stages) > 0 }

// extend appends hashes to a chain until it has n blocks; content identifies
// what they contain.
func extend(blocks []uint64, n int, content uint64) []uint64 {
	hash := uint64(0)
	if len(blocks) > 0 {
		hash = blocks[len(blocks)-1]
	}
	for i := len(blocks); i < n; i++ {
		hash = chain(hash, content+uint64(i))
		blocks = append(blocks, hash)
	}
	return blocks
}

type conversationSource struct {
	Conversations
	seed    uint64
	lengths *rand.Rand
	choice  *rand.Rand
	users   []user
	systems [][]uint64 // blocks of each group's system prompt
	tenants []string
	taken   int

	clock *clock
	next  time.Duration
	more  bool
	idle  []int32 // users who are not waiting for an answer
}

// user is a user in the current conversation.
type user struct {
	turns  int // asked in this conversation
	past   int // earlier conversations
	tokens int // tokens in it, including system prompt and answers
	blocks []uint64
}

// Next implements [Source].
func (s *conversationSource) Next() (time.Duration, bool) {
	over := s.Requests > 0 && s.taken >= s.Requests || s.Duration > 0 && s.next > s.Duration
	return s.next, s.more && len(s.idle) > 0 && !over
}

// Take implements [Source].
func (s *conversationSource) Take() Request {
	s.taken++
	i := s.choice.IntN(len(s.idle))
	who := int(s.idle[i])
	s.idle[i] = s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	s.next, s.more = s.clock.next()
	return s.ask(who)
}

// ask makes the user's next turn.
func (s *conversationSource) ask(who int) Request {
	u := &s.users[who]
	group := who / s.UsersPerGroup
	if u.turns == s.Turns {
		u.past++
		u.turns, u.blocks = 0, nil
	}
	if u.turns == 0 {
		u.tokens = s.SystemTokens
	}
	input := max(1, u.tokens+s.Question.draw(s.lengths))
	output := max(1, s.Output.draw(s.lengths))
	u.tokens = input + output
	u.turns++
	if len(u.blocks) == 0 {
		// Room for the whole conversation, so that its turns share one array.
		u.blocks = make([]uint64, 0, max(u.tokens, s.SystemTokens+s.Turns*int(s.Question.Mean+s.Output.Mean))/BlockTokens)
		u.blocks = append(u.blocks, s.systems[group]...)
	}
	content := engine.Mix(s.seed ^ engine.Mix(uint64(who)<<20+uint64(u.past)+1))
	u.blocks = extend(u.blocks, u.tokens/BlockTokens, content)
	return Request{
		InputTokens: input, OutputTokens: output, Blocks: u.blocks,
		SystemTokens:         s.SystemTokens,
		ExpectedOutputTokens: int(s.Output.Mean),
		Tenant:               s.tenants[group],
		Session:              s.tenants[group] + "/" + strconv.Itoa(who),
		Handle:               who,
	}
}

// Done implements [Source].
func (s *conversationSource) Done(r *Request, _ time.Duration) {
	s.idle = append(s.idle, int32(r.Handle))
}
