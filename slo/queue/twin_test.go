package queue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick/slo/queue"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// twin is the queue as a plain slice: every answer scans all requests.
type twin struct {
	config queue.Config
	items  []twinItem
	now    map[int]int64            // virtual time by priority
	tag    map[int]map[string]int64 // by priority and tenant
	start  map[int]map[string]int64 // when the tenant last began to wait
	epoch  map[int]int              // how often each priority has run empty
}

type twinItem struct {
	queue.Item[int]
	sequence int
	expires  time.Time
}

func (i *twinItem) cost() int64 { return int64(max(i.Tokens, 1)) }

// dispatchCost is the cost of a request when it is dispatched, with an output weight of 3.
func (i *twinItem) dispatchCost() int64 { return i.cost() + 3*int64(i.OutputTokens) }

func (i *twinItem) before(j *twinItem) bool {
	due := func(i *twinItem) time.Time {
		if i.Deadline.IsZero() || i.Deadline.After(i.expires) {
			return i.expires
		}
		return i.Deadline
	}
	if c := due(i).Compare(due(j)); c != 0 {
		return c < 0
	}
	return i.sequence < j.sequence
}

func (w *twin) in(priority int, tenant string) (found []twinItem) {
	for _, i := range w.items {
		if i.Priority == priority && i.Tenant == tenant {
			found = append(found, i)
		}
	}
	slices.SortFunc(found, func(a, b twinItem) int {
		if a.before(&b) {
			return -1
		}
		return 1
	})
	return found
}

func (w *twin) remove(sequence int) {
	w.items = slices.DeleteFunc(w.items, func(i twinItem) bool { return i.sequence == sequence })
}

// settle forgets the tags of priorities with no waiting requests.
func (w *twin) settle() {
	for p := range w.tag {
		if !slices.ContainsFunc(w.items, func(i twinItem) bool { return i.Priority == p }) {
			delete(w.tag, p)
			delete(w.start, p)
			delete(w.now, p)
			w.epoch[p]++
		}
	}
}

// short returns an item's share of the first limit that is exceeded; nil if
// none is.
func (w *twin) short() func(*twinItem) int64 {
	for _, bound := range []struct {
		most int64
		of   func(*twinItem) int64
	}{
		{int64(w.config.MaxRequests), func(*twinItem) int64 { return 1 }},
		{w.config.MaxTokens, (*twinItem).cost},
		{w.config.MaxBytes, func(i *twinItem) int64 { return int64(i.Bytes) }},
	} {
		sum := int64(0)
		for i := range w.items {
			sum += bound.of(&w.items[i])
		}
		if bound.most > 0 && sum > bound.most {
			return bound.of
		}
	}
	return nil
}

func (w *twin) worst(of func(*twinItem) int64) twinItem {
	lowest := w.items[0].Priority
	for _, i := range w.items {
		lowest = min(lowest, i.Priority)
	}
	var worst twinItem
	most := int64(-1)
	for _, i := range w.items {
		if i.Priority != lowest {
			continue
		}
		all := w.in(lowest, i.Tenant)
		sum := int64(0)
		for _, j := range all {
			sum += of(&j)
		}
		last := all[len(all)-1]
		if sum > most || sum == most && worst.before(&last) {
			worst, most = last, sum
		}
	}
	return worst
}

func (w *twin) push(item twinItem) (shed []int, err error) {
	if c := w.config; c.MaxTokens > 0 && item.cost() > c.MaxTokens || c.MaxBytes > 0 && int64(item.Bytes) > c.MaxBytes {
		return nil, queue.ErrTooLarge
	}
	before := slices.Clone(w.items)
	w.items = append(w.items, item)
	for of := w.short(); of != nil; of = w.short() {
		v := w.worst(of)
		if v.sequence == item.sequence {
			w.items = before
			return nil, queue.ErrFull
		}
		w.remove(v.sequence)
		shed = append(shed, v.Value)
	}
	p := item.Priority
	if w.tag[p] == nil {
		w.tag[p], w.start[p] = map[string]int64{}, map[string]int64{}
	}
	if !slices.ContainsFunc(before, func(i twinItem) bool { return i.Priority == p && i.Tenant == item.Tenant }) {
		w.tag[p][item.Tenant] = max(w.tag[p][item.Tenant], w.now[p])
		w.start[p][item.Tenant] = w.now[p]
	}
	w.settle()
	return shed, nil
}

func (w *twin) pop() (int, bool) {
	if len(w.items) == 0 {
		return 0, false
	}
	p := w.items[0].Priority
	for _, i := range w.items {
		p = max(p, i.Priority)
	}
	var best *twinItem
	for _, i := range w.items {
		if i.Priority != p {
			continue
		}
		first := w.in(p, i.Tenant)[0]
		if best == nil || w.tag[p][first.Tenant] < w.tag[p][best.Tenant] ||
			w.tag[p][first.Tenant] == w.tag[p][best.Tenant] && first.before(best) {
			best = &first
		}
	}
	w.now[p] = max(w.now[p], w.tag[p][best.Tenant])
	w.tag[p][best.Tenant] += best.dispatchCost()
	w.remove(best.sequence)
	w.settle()
	return best.Value, true
}

// charge is what Settle does: nothing if the priority has run empty since.
func (w *twin) charge(item queue.Item[int], epoch, input, output int) {
	p, tenant := item.Priority, false
	if w.tag[p] == nil || w.epoch[p] != epoch {
		return
	}
	for _, i := range w.items {
		tenant = tenant || i.Priority == p && i.Tenant == item.Tenant
	}
	more := int64(input) + 3*int64(output) - (&twinItem{Item: item}).dispatchCost()
	if tenant {
		w.tag[p][item.Tenant] = max(w.tag[p][item.Tenant]+more, w.start[p][item.Tenant])
	} else { // a tenant that comes back starts no earlier than those that waited
		w.tag[p][item.Tenant] = max(w.tag[p][item.Tenant], w.now[p]) + more
	}
}

func (w *twin) expire(now time.Time) (gone []int) {
	left := slices.Clone(w.items)
	slices.SortFunc(left, func(a, b twinItem) int {
		if c := a.expires.Compare(b.expires); c != 0 {
			return c
		}
		return a.sequence - b.sequence
	})
	for _, i := range left {
		if !i.expires.After(now) {
			gone = append(gone, i.Value)
			w.remove(i.sequence)
		}
	}
	w.settle()
	return gone
}

func TestQueueIsLikeItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := queue.Config{
			MaxRequests: rapid.IntRange(1, 8).Draw(t, "max requests"),
			MaxTokens:   int64(rapid.IntRange(0, 60).Draw(t, "max tokens")),
			MaxBytes:    int64(rapid.IntRange(0, 40).Draw(t, "max bytes")),
			Timeout:     50 * time.Millisecond, OutputWeight: 3,
		}
		// With little room no request waits for long, so a band ends before its order says
		// anything. In a roomy queue tenants come, go and come back.
		lowest, most := -1, 1 // priorities
		pushes, pops, settles, patience := []int{1}, []int{1}, []int{1}, 40
		used := []int{0, 40, 1, 10, 25}
		roomy := rapid.Bool().Draw(t, "roomy")
		if roomy {
			config.MaxRequests, config.MaxTokens, config.MaxBytes, config.Timeout = 40, 0, 0, 900*time.Millisecond
			lowest, most, patience = 0, rapid.IntRange(0, 1).Draw(t, "highest"), 0
			pushes, pops, settles = []int{9, 5, 2, 1}, []int{3, 6, 1}, []int{4, 2, 1}
		}
		var dispatched []queue.Item[int]
		var epochs []int // at their dispatch
		var timedOut, shed []int
		q, err := queue.New(config, func(i queue.Item[int], err error) {
			switch qe := err.(*queue.Error); qe.Reason {
			case queue.ErrTimeout:
				timedOut = append(timedOut, i.Value)
			case queue.ErrShed:
				shed = append(shed, i.Value)
			default:
				t.Fatalf("dropped for %v", err)
			}
		})
		require.NoError(t, err)
		w := &twin{
			config: config, now: map[int]int64{}, tag: map[int]map[string]int64{},
			start: map[int]map[string]int64{}, epoch: map[int]int{},
		}
		now, sequence := 0, 0
		handles := map[int]queue.Handle[int]{}
		left := map[int]int{} // how often each request has left
		same := func(what string, got, want []int) {
			require.Equal(t, want, got, what)
			for _, v := range got {
				left[v]++
			}
		}
		// pass lets time pass before a call under test.
		pass := func(t *rapid.T) {
			if !roomy {
				now += rapid.SampledFrom([]int{0, 0, 0, 0, 20, 45, 5, 1}).Draw(t, "ms before")
			}
		}
		times := func(counts []int, do func(*rapid.T)) func(*rapid.T) {
			return func(t *rapid.T) {
				for range rapid.SampledFrom(counts).Draw(t, "times") {
					do(t)
				}
			}
		}
		actions := map[string]func(*rapid.T){
			"push": times(pushes, func(t *rapid.T) {
				timedOut, shed = nil, nil
				pass(t)
				item := queue.Item[int]{
					Priority:     rapid.IntRange(lowest, most).Draw(t, "priority"),
					Tenant:       rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "tenant"),
					Tokens:       rapid.SampledFrom([]int{0, 1, 10, 10, 20, 31}).Draw(t, "tokens"),
					OutputTokens: rapid.IntRange(0, 30).Draw(t, "output tokens"),
					Bytes:        rapid.IntRange(0, 20).Draw(t, "bytes"),
					Timeout:      time.Duration(rapid.IntRange(0, patience).Draw(t, "timeout")) * time.Millisecond,
					Value:        sequence,
				}
				if d := rapid.IntRange(0, 5).Draw(t, "deadline"); d > 0 {
					item.Deadline = at(now + 10*d)
				}
				sequence++
				handle, err := q.Push(at(now), item)
				same("timed out", timedOut, w.expire(at(now)))
				timeout := item.Timeout
				if timeout == 0 {
					timeout = config.Timeout
				}
				wantShed, want := w.push(twinItem{item, item.Value, at(now).Add(timeout)})
				same("shed", shed, wantShed)
				require.ErrorIs(t, err, want)
				if want == nil {
					handles[item.Value] = handle
				}
			}),
			"pop": times(pops, func(t *rapid.T) {
				timedOut = nil
				pass(t)
				item, ok := q.Pop(at(now), 0.5)
				same("timed out", timedOut, w.expire(at(now)))
				epochs = append(epochs, w.epoch[item.Priority])
				want, wantOK := w.pop()
				if dispatched = append(dispatched, item); !ok {
					dispatched, epochs = dispatched[:len(epochs)-1], epochs[:len(epochs)-1]
				}
				require.Equal(t, wantOK, ok)
				require.Equal(t, want, item.Value)
				if ok {
					left[item.Value]++
				}
			}),
			"settle": times(settles, func(t *rapid.T) {
				if len(dispatched) == 0 {
					return
				}
				at := rapid.IntRange(0, len(dispatched)-1).Draw(t, "which")
				input, output := rapid.SampledFrom(used).Draw(t, "input"), rapid.SampledFrom(used).Draw(t, "output")
				q.Settle(dispatched[at], input, output)
				w.charge(dispatched[at], epochs[at], input, output)
				dispatched, epochs = slices.Delete(dispatched, at, at+1), slices.Delete(epochs, at, at+1)
			}),
			"full": func(t *rapid.T) {
				timedOut = nil
				pass(t)
				_, ok := q.Pop(at(now), 1)
				require.False(t, ok, "popped although full")
				same("timed out", timedOut, w.expire(at(now)))
			},
			"cancel": func(t *rapid.T) {
				if sequence == 0 {
					return
				}
				v := rapid.IntRange(0, sequence-1).Draw(t, "which")
				_, want := handles[v]
				want = want && left[v] == 0
				item, ok := q.Cancel(handles[v])
				require.Equal(t, want, ok)
				if ok {
					require.Equal(t, v, item.Value)
					left[v]++
					w.remove(v)
					w.settle()
				}
			},
			"wait": func(t *rapid.T) {
				timedOut = nil
				now += rapid.IntRange(0, 30).Draw(t, "ms")
				q.Pop(at(now), 1)
				same("timed out", timedOut, w.expire(at(now)))
			},
			"": func(t *rapid.T) {
				var tokens, bytes int64
				for _, i := range w.items {
					tokens += i.cost()
					bytes += int64(i.Bytes)
				}
				s := q.Stats()
				require.Equal(t, []int64{int64(len(w.items)), tokens, bytes}, []int64{int64(s.Requests), s.Tokens, s.Bytes})
				next, ok := q.NextExpiry()
				var first time.Time
				for _, i := range w.items {
					if first.IsZero() || i.expires.Before(first) {
						first = i.expires
					}
				}
				require.Equal(t, len(w.items) > 0, ok)
				require.True(t, next.Equal(first), "next expiry %v, the twin says %v", next, first)
				require.Equal(t, s.Pushed, s.Dispatched+s.TimedOut+s.Shed+s.Canceled+uint64(s.Requests))
				for v := range handles {
					held := slices.ContainsFunc(w.items, func(i twinItem) bool { return i.Value == v })
					require.True(t, held && left[v] == 0 || !held && left[v] == 1, "request %d left %d times", v, left[v])
				}
			},
		}
		if roomy { // a small queue says nothing about the order; the roomy ones cover them
			delete(actions, "cancel")
			delete(actions, "full")
		}
		t.Repeat(actions)
	})
}
