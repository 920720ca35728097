package learn

import (
	"fmt"
	"math"
	"time"

	"github.com/endpick/endpick/internal/codec"
	"github.com/endpick/endpick/predict/boost"
)

const learnerKind = "EPLN"

// AppendBinary appends the learner's state: the samples of its window, its model, its spread. It
// waits for a running refit, whose pending labels are not included. The error is always nil.
func (l *Learner) AppendBinary(dst []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.release()
	var e codec.Encoder
	e.Int(l.config.Boost.Features)
	e.Int(l.window.Buckets())
	e.Bool(l.noPrior)
	appendQuantile(&e, &l.spread.all)
	seen := 0
	for i := range l.spread.buckets {
		if l.spread.buckets[i].count > 0 {
			seen++
		}
	}
	e.Int(seen)
	for i := range l.spread.buckets {
		if q := &l.spread.buckets[i]; q.count > 0 {
			e.Int(i)
			appendQuantile(&e, q)
		}
	}
	e.Int(l.window.Len())
	for _, s := range l.window.order() {
		i := int(s.sample)
		e.Uint64(uint64(l.window.at[i]))
		e.Float(l.window.y[i])
		for _, v := range l.window.row(i) {
			e.Float(v)
		}
	}
	var model []byte
	if m := l.model.Load(); m != nil {
		model, _ = m.AppendBinary(nil)
	}
	e.Bytes(model)
	return codec.Seal(dst, learnerKind, e.B), nil
}

func appendQuantile(e *codec.Encoder, q *quantile) {
	e.Float(q.value)
	e.Float(q.scale)
	e.Int(q.count)
}

func readQuantile(d *codec.Decoder) quantile {
	q := quantile{d.Number("quantile"), d.Number("residual"), d.Int("residuals", 0, math.MaxInt32)}
	if !(q.value >= 0 && q.value <= maxResidual && q.scale >= 0) {
		d.Fail("quantile %v of residuals %v", q.value, q.scale)
	}
	return q
}

// Restore replaces the learner's state by one that AppendBinary saved, with the same features and
// strata. Damaged bytes give ErrFormat, those of another version ErrVersion, and leave the learner
// as it was.
func (l *Learner) Restore(b []byte) error {
	content, rest, err := codec.Unseal(b, learnerKind)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes too many", codec.ErrFormat, len(rest))
	}
	k := l.config.Boost.Features
	w, err := NewWindow(l.config.Window)
	if err != nil {
		return err
	}
	d := codec.Decoder{B: content}
	d.Int("features", k, k)
	d.Int("buckets", w.Buckets(), w.Buckets())
	noPrior := d.Bool()
	s := newSpread(w.Buckets())
	s.all = readQuantile(&d)
	next := 0
	for range d.Int("buckets with a history", 0, w.Buckets()) {
		i := d.Int("bucket", next, w.Buckets())
		if i == w.Buckets() {
			d.Fail("bucket %d of %d", i, w.Buckets())
		}
		if d.Err != nil {
			return d.Err
		}
		s.buckets[i] = readQuantile(&d)
		next = i + 1
	}
	row := make([]float64, k)
	for range d.Count("samples", 8*(k+2)) {
		at, y := int64(d.Uint64()), d.Number("label")
		for i := range row {
			row[i] = d.Float()
		}
		if !(y >= 1/maxLabel && y <= maxLabel) {
			d.Fail("label is %v", y)
		}
		if d.Err != nil {
			break
		}
		_ = w.Add(row, y, time.Unix(0, at)) // the lengths match
	}
	var m *boost.Model
	if saved := d.Bytes("bytes of a model"); len(saved) > 0 {
		m = new(boost.Model)
		if err := m.UnmarshalBinary(saved); err != nil {
			return err
		}
		if m.Features() != k {
			d.Fail("the model has %d features, want %d", m.Features(), k)
		}
	}
	if err := d.End(); err != nil {
		return err
	}
	s.publish()
	l.mu.Lock()
	defer l.release()
	l.window, l.noPrior, l.challenger, l.since, l.asked = w, noPrior, nil, 0, nil
	l.scores, l.shifts, l.renewed, l.choices = scores{}, shiftDetector{}, 0, 0
	l.hurry.Store(false)
	l.spread.all, l.spread.buckets = s.all, s.buckets
	l.spread.publish()
	l.model.Store(m)
	if m != nil {
		l.refits.Add(1)
	}
	l.statusMu.Lock()
	defer l.statusMu.Unlock()
	l.errors, l.covered, l.nextErr, l.longRun, l.longN = nil, nil, 0, 0, 0
	l.health.LastFail, l.health.FitTime, l.health.Overdue = nil, 0, 0
	l.health.Samples = w.Len()
	l.health.Prior = m != nil && !noPrior && len(l.config.Boost.Prior) > 0
	l.health.Refits = l.refits.Load()
	l.health.LastFit = w.Newest()
	return nil
}
