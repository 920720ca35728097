package predict

import (
	"fmt"
	"maps"
	"slices"

	"github.com/endpick/endpick/internal/codec"
	"github.com/endpick/endpick/internal/learn"
)

const latencyKind = "EPLT"

// AppendBinary appends what has been learned, for Restore. It waits for a running refit. The error
// is always nil.
func (l *Latency) AppendBinary(dst []byte) ([]byte, error) {
	var e codec.Encoder
	variants := *l.variants.Load()
	models := *l.models.Load()
	e.Int(len(variants))
	for _, v := range variants {
		e.Bytes([]byte(v.name))
	}
	e.Int(len(models))
	for _, name := range slices.Sorted(maps.Keys(models)) {
		m := models[name]
		e.Bytes([]byte(name))
		for i, learner := range m.learners {
			for _, v := range variants {
				seen := &m.seen[i][v.place]
				if seen.of.Load() == v {
					e.Uint64(seen.count.Load())
				} else {
					e.Uint64(0)
				}
			}
			saved, _ := learner.AppendBinary(nil)
			e.Bytes(saved)
		}
	}
	return codec.Seal(dst, latencyKind, e.B), nil
}

// Restore is NewLatency with the state that Latency.AppendBinary saved. Damaged bytes give
// ErrFormat, those of another version ErrVersion.
func Restore(config LatencyConfig, saved []byte) (*Latency, error) {
	content, rest, err := codec.Unseal(saved, latencyKind)
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
		return nil, err
	}
	return l, nil
}

func (l *Latency) restore(content []byte) error {
	d := codec.Decoder{B: content}
	var variants []*variant
	for place := range d.Int("variants", 0, maxVariants) {
		name := string(d.Bytes("letters"))
		if len(name) > maxName || findVariant(variants, name) != nil {
			d.Fail("variant %.20q is too long, or there twice", name)
		}
		variants = append(variants, &variant{name: name, place: place})
	}
	models := map[string]*servedModel{}
	for range d.Int("models", 0, l.config.MaxModels) {
		name := string(d.Bytes("letters"))
		if len(name) > maxName || models[name] != nil {
			d.Fail("model %.20q is too long, or there twice", name)
		}
		if d.Err != nil {
			break
		}
		m := l.newModel(name)
		for i, learner := range m.learners {
			var counts [maxVariants]uint64
			for _, v := range variants {
				counts[v.place] = d.Uint64()
			}
			b := d.Bytes("bytes of a learner")
			if d.Err != nil {
				return d.Err
			}
			if err := learner.Restore(b); err != nil {
				return err
			}
			for _, v := range variants {
				seen, n := &m.seen[i][v.place], counts[v.place]
				seen.of.Store(v)
				seen.count.Store(n)
				if n >= learn.FirstFit {
					seen.readyAfter.Store(1)
				}
			}
		}
		models[name] = m
	}
	if err := d.End(); err != nil {
		return err
	}
	l.models.Store(&models)
	l.variants.Store(&variants)
	return nil
}
