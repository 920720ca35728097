package predict

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

const (
	learnerKind = "EPLN"
	latencyKind = "EPLT"
)

// AppendBinary appends what the learner knows: the samples of its window, its model, its spread. Labels that are still
// waiting for the background are not part of it. It waits for a refit that is going on. The error is always nil.
func (l *Learner) AppendBinary(dst []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e encoder
	e.int(l.config.Boost.Features)
	e.int(l.window.Buckets())
	e.bool(l.noPrior)
	e.quantile(&l.spread.all)
	seen := 0
	for i := range l.spread.buckets {
		if l.spread.buckets[i].count > 0 {
			seen++
		}
	}
	e.int(seen)
	for i := range l.spread.buckets {
		if q := &l.spread.buckets[i]; q.count > 0 {
			e.int(i)
			e.quantile(q)
		}
	}
	e.int(l.window.Len())
	for _, s := range l.window.order() {
		i := int(s.sample)
		e.uint64(uint64(l.window.at[i]))
		e.float(l.window.y[i])
		for _, v := range l.window.row(i) {
			e.float(v)
		}
	}
	var model []byte
	if m := l.model.Load(); m != nil {
		model, _ = m.AppendBinary(nil)
	}
	e.bytes(model)
	return seal(dst, learnerKind, e.b), nil
}

func (e *encoder) quantile(q *quantile) {
	e.float(q.value)
	e.float(q.scale)
	e.int(q.count)
}

func (d *decoder) quantile() quantile {
	q := quantile{d.number("quantile"), d.number("residual"), d.int("residuals", 0, math.MaxInt32)}
	if !(q.value >= 0 && q.value <= maxResidual && q.scale >= 0) {
		d.fail("quantile %v of residuals %v", q.value, q.scale)
	}
	return q
}

// Restore replaces what the learner knows by what AppendBinary saved of one with the same features and strata. Damaged
// bytes are ErrFormat, those of another version ErrVersion, and leave the learner as it was.
func (l *Learner) Restore(b []byte) error {
	content, rest, err := unseal(b, learnerKind)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes too many", ErrFormat, len(rest))
	}
	k := l.config.Boost.Features
	w, err := NewWindow(l.config.Window)
	if err != nil {
		return err
	}
	d := decoder{b: content}
	d.int("features", k, k)
	d.int("buckets", w.Buckets(), w.Buckets())
	noPrior := d.bool()
	s := newSpread(w.Buckets())
	s.all = d.quantile()
	next := 0
	for range d.int("buckets with a history", 0, w.Buckets()) {
		i := d.int("bucket", next, w.Buckets())
		if i == w.Buckets() {
			d.fail("bucket %d of %d", i, w.Buckets())
		}
		if d.err != nil {
			return d.err
		}
		s.buckets[i] = d.quantile()
		next = i + 1
	}
	row := make([]float64, k)
	for range d.count("samples", 8*(k+2)) {
		at, y := int64(d.uint64()), d.number("label")
		for i := range row {
			row[i] = d.float()
		}
		if !(y >= 1/maxTarget && y <= maxTarget) {
			d.fail("label is %v", y)
		}
		if d.err != nil {
			break
		}
		_ = w.Add(row, y, time.Unix(0, at)) // the lengths match
	}
	var m *Model
	if saved := d.bytes("bytes of a model"); len(saved) > 0 {
		m = new(Model)
		if err := m.UnmarshalBinary(saved); err != nil {
			return err
		}
		if m.Features() != k {
			d.fail("the model has %d features, want %d", m.Features(), k)
		}
	}
	if err := d.end(); err != nil {
		return err
	}
	s.publish()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.window, l.noPrior, l.challenger, l.since = w, noPrior, nil, 0
	l.spread.all, l.spread.buckets = s.all, s.buckets
	l.spread.publish()
	l.model.Store(m)
	if m != nil {
		l.refits.Add(1)
	}
	l.statusMu.Lock()
	defer l.statusMu.Unlock()
	l.health.Samples = w.Len()
	l.health.Prior = m != nil && m.prior.used()
	l.health.Refits = l.refits.Load()
	l.health.LastFit = w.Newest()
	return nil
}

// AppendBinary appends what has been learned, for RestoreLatency. It waits for a refit that is going on. The error is
// always nil.
func (l *Latency) AppendBinary(dst []byte) ([]byte, error) {
	var e encoder
	variants := *l.variants.Load()
	models := *l.models.Load()
	e.int(len(variants))
	for _, v := range variants {
		e.bytes([]byte(v))
	}
	e.int(len(models))
	for _, name := range slices.Sorted(maps.Keys(models)) {
		m := models[name]
		e.bytes([]byte(name))
		for i, learner := range m.learners {
			for v := range maxVariants {
				e.uint64(m.seen[i][v].count.Load())
			}
			saved, _ := learner.AppendBinary(nil)
			e.bytes(saved)
		}
	}
	return seal(dst, latencyKind, e.b), nil
}

// RestoreLatency is NewLatency with what Latency.AppendBinary has saved. Damaged bytes are ErrFormat, those of another
// version ErrVersion.
func RestoreLatency(config LatencyConfig, saved []byte) (*Latency, error) {
	content, rest, err := unseal(saved, latencyKind)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrFormat, len(rest))
	}
	l, err := NewLatency(config)
	if err != nil {
		return nil, err
	}
	if err := l.restore(content); err != nil {
		_ = l.Close() // it has nothing to fail at
		return nil, err
	}
	return l, nil
}

func (l *Latency) restore(content []byte) error {
	d := decoder{b: content}
	var variants []string
	for range d.int("variants", 0, maxVariants) {
		variants = append(variants, string(d.bytes("letters")))
	}
	models := map[string]*servedModel{}
	for range d.int("models", 0, l.config.MaxModels) {
		name := string(d.bytes("letters"))
		if d.err != nil {
			break
		}
		m := l.newModel(name)
		for i, learner := range m.learners {
			var counts [maxVariants]uint64
			for v := range counts {
				counts[v] = d.uint64()
			}
			b := d.bytes("bytes of a learner")
			if d.err != nil {
				return d.err
			}
			if err := learner.Restore(b); err != nil {
				return err
			}
			for v, n := range counts {
				m.seen[i][v].count.Store(n)
				if n >= firstFit {
					m.seen[i][v].readyAfter.Store(1)
				}
			}
		}
		models[name] = m
	}
	if err := d.end(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		for _, learner := range models[name].learners {
			l.trainer.add(learner)
		}
	}
	l.models.Store(&models)
	l.variants.Store(&variants)
	return nil
}
