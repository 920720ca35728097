package learn

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick/predict/boost"
)

const (
	defaultWindowSamples = 25000
	// halfLife is the age at which a sample weighs half, counted in newer samples of its bucket: new
	// samples only devalue similar ones, and a quiet night devalues nothing. leastWeight is that of
	// the oldest.
	halfLife    = 400
	leastWeight = 0.05
	// leastSamples are kept whatever their age: a model of old samples is better than one of a
	// handful, and the clock may have been set. In a small window it is a quarter of its samples.
	leastSamples = 1000
)

// A Stratum divides the values of one feature for a [Window]: values below Edges[0], from there to
// below Edges[1], and so on. An absent value (NaN) is in the first part.
type Stratum struct {
	Feature int
	// Edges are ascending.
	Edges []float64
}

func (s *Stratum) part(v float64) int {
	for i, e := range s.Edges {
		if !(v >= e) {
			return i
		}
	}
	return len(s.Edges)
}

// WindowConfig says what a Window keeps. The zero value of every field but Features is a usable default.
type WindowConfig struct {
	// Features is the number of values in a row.
	Features int
	// Samples limits the window; 0 means 25,000.
	Samples int
	// Strata are the features whose parts, combined, are the buckets; none means one bucket.
	Strata []Stratum
	// MaxAge is the age beyond which Expire drops samples, except for the newest thousand; 0 means
	// no limit.
	MaxAge time.Duration
}

// A Window keeps the newest samples of every bucket of a stratification. When it is full, it drops
// the oldest sample of the fullest bucket: rare samples are kept for long, and common ones are
// recent. It is not safe for concurrent use.
type Window struct {
	config  WindowConfig
	x       []float64
	y       []float64
	at      []int64 // nanoseconds since the epoch
	number  []uint64
	next    []int32 // next newer sample of the bucket, if there is one
	buckets []bucket
	free    int32 // head of a list through next
	rows    int
	added   uint64
	newest  int64
}

type bucket struct {
	oldest, newest int32
	rows           int
}

const none = -1

// NewWindow returns an empty window.
func NewWindow(config WindowConfig) *Window {
	config.Samples = cmp.Or(config.Samples, defaultWindowSamples)
	buckets := 1
	for _, s := range config.Strata {
		buckets *= len(s.Edges) + 1
	}
	return &Window{config: config, buckets: slices.Repeat([]bucket{{none, none, 0}}, buckets), free: none}
}

// Len returns the number of samples in the window.
func (w *Window) Len() int { return w.rows }

// Bucket returns the bucket of a row, from 0.
func (w *Window) Bucket(row []float64) int { return bucketOf(w.config.Strata, row) }

func bucketOf(strata []Stratum, row []float64) int {
	b := 0
	for i := range strata {
		s := &strata[i]
		b = b*(len(s.Edges)+1) + s.part(row[s.Feature])
	}
	return b
}

// Newest returns the time of the sample added last; the zero time if there is none.
func (w *Window) Newest() time.Time {
	if w.added == 0 {
		return time.Time{}
	}
	return time.Unix(0, w.newest)
}

// Buckets returns the number of buckets.
func (w *Window) Buckets() int { return len(w.buckets) }

// rowsByBucket appends the number of samples in each bucket.
func (w *Window) rowsByBucket(dst []int32) []int32 {
	for i := range w.buckets {
		dst = append(dst, int32(w.buckets[i].rows))
	}
	return dst
}

// Add copies a sample into the window.
func (w *Window) Add(row []float64, label float64, at time.Time) {
	w.added++
	if w.rows == w.config.Samples {
		fullest := 0
		for i := range w.buckets {
			if w.buckets[i].rows > w.buckets[fullest].rows {
				fullest = i
			}
		}
		w.drop(&w.buckets[fullest])
	}
	i := w.free
	if i == none {
		i = int32(len(w.y))
		w.x = append(w.x, row...)
		w.y = append(w.y, label)
		w.at = append(w.at, at.UnixNano())
		w.number = append(w.number, w.added)
		w.next = append(w.next, 0)
	} else {
		w.free = w.next[i]
		copy(w.x[int(i)*len(row):], row)
		w.y[i], w.at[i], w.number[i] = label, at.UnixNano(), w.added
	}
	b := &w.buckets[w.Bucket(row)]
	if b.rows == 0 {
		b.oldest = i
	} else {
		w.next[b.newest] = i
	}
	b.newest = i
	b.rows++
	w.rows++
	w.newest = w.at[i]
}

// drop removes a bucket's oldest sample.
func (w *Window) drop(b *bucket) {
	i := b.oldest
	b.oldest = w.next[i]
	w.next[i] = w.free
	w.free = i
	b.rows--
	w.rows--
}

// Expire drops samples older than MaxAge, except for the newest leastSamples. Samples further in
// the future than MaxAge come from a clock that was set, and count as that old.
func (w *Window) Expire(now time.Time) {
	most := w.rows - min(leastSamples, w.config.Samples/4)
	if w.config.MaxAge == 0 || most <= 0 {
		return
	}
	newest := w.number[w.order()[most-1].sample] // of those that may be dropped
	from, to := now.Add(-w.config.MaxAge).UnixNano(), now.Add(w.config.MaxAge).UnixNano()
	for i := range w.buckets {
		b := &w.buckets[i]
		for b.rows > 0 && (w.at[b.oldest] < from || w.at[b.oldest] > to) && w.number[b.oldest] <= newest {
			w.drop(b)
		}
	}
}

// Forget drops the samples with a value in a column.
func (w *Window) Forget(column int, value float64) {
	for i := range w.buckets {
		b := &w.buckets[i]
		s := b.oldest
		b.oldest, b.newest = none, none
		for n := b.rows; n > 0; n-- {
			next := w.next[s]
			switch {
			case w.row(int(s))[column] == value:
				w.next[s], w.free = w.free, s
				b.rows--
				w.rows--
			default:
				if b.newest == none {
					b.oldest = s
				} else {
					w.next[b.newest] = s
				}
				b.newest = s
			}
			s = next
		}
	}
}

// AppendTo appends the samples to data, in the order in which they were added, with their
// weights.
func (w *Window) AppendTo(data *boost.Data) {
	data.X = slices.Grow(data.X, w.rows*w.config.Features)
	data.Y = slices.Grow(data.Y, w.rows)
	data.W = slices.Grow(data.W, w.rows)
	for _, e := range w.order() {
		data.X = append(data.X, w.row(int(e.sample))...)
		data.Y = append(data.Y, w.y[e.sample])
		data.W = append(data.W, max(leastWeight, math.Exp(-math.Ln2*float64(e.age)/halfLife)))
	}
}

func (w *Window) row(i int) []float64 {
	k := w.config.Features
	return w.x[i*k : (i+1)*k]
}

type aged struct{ sample, age int32 } // age: how many are newer in its bucket

// order lists the samples in the order in which they were added.
func (w *Window) order() []aged {
	order := make([]aged, 0, w.rows)
	for i := range w.buckets {
		age := int32(w.buckets[i].rows)
		for s := w.buckets[i].oldest; age > 0; s = w.next[s] {
			age--
			order = append(order, aged{s, age})
		}
	}
	if w.added == uint64(w.rows) { // none has been dropped: their numbers are those from 1
		sorted := make([]aged, w.rows)
		for _, e := range order {
			sorted[w.number[e.sample]-1] = e
		}
		return sorted
	}
	slices.SortFunc(order, func(a, b aged) int { return cmp.Compare(w.number[a.sample], w.number[b.sample]) })
	return order
}
