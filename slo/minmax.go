package slo

import (
	"math"

	"github.com/endpick/endpick"
)

// minMax scores like bestFit, but with each dimension normalised over the
// candidates of a group instead of as a share of the SLO (Gateway API Inference
// Extension, latency scorer). If all are equal in a dimension, its weight goes
// to the other. After normalisation, shares and absolute headrooms are the
// same, because they differ only by the SLO.
func (s *BestFit) minMax(req *endpick.Request, candidates []endpick.Candidate, dst []float64) (predicted int) {
	m := s.config.Headroom.measure(req, s.config.Headroom.config.Bound)
	defer m.end()
	var f Fit
	var spans [groups]struct{ ttft, tpot span }
	for i := range candidates {
		m.fit(&candidates[i], &f)
		if !f.Known {
			continue
		}
		predicted++
		g := groupOf(&f, &candidates[i])
		ttft, tpot := m.dimensions(&f, g)
		spans[g].ttft.add(ttft)
		spans[g].tpot.add(tpot)
	}
	for i := range candidates {
		m.fit(&candidates[i], &f)
		if !f.Known {
			dst[i] = unscored
			continue
		}
		g := groupOf(&f, &candidates[i])
		ttft, tpot := m.dimensions(&f, g)
		combined := blend(spans[g].ttft, spans[g].tpot, ttft, tpot, s.config.Headroom.config.TTFTWeight)
		switch {
		case g == idle:
			dst[i] = 0.5 - 0.2*combined
		case g == busy:
			dst[i] = 0.2 - 0.2*combined
		case s.config.Strategy == Most:
			dst[i] = 0.6 + 0.4*combined
		default:
			dst[i] = 1 - 0.4*combined
		}
	}
	return predicted
}

// dimensions are the headrooms of a candidate that meets its targets, or the
// deficits of one that does not; that of TPOT also considers running requests.
func (m *measure) dimensions(f *Fit, group int) (ttft, tpot float64) {
	if group == meets {
		return f.TTFT, f.TPOT
	}
	ttft = max(0, -f.TTFT)
	return ttft, (f.Deficit - m.ttftWeight*ttft) / m.tpotWeight
}

// span is the range of a dimension over the candidates.
type span struct {
	least, most float64
	seen        bool
}

func (s *span) add(v float64) {
	if !s.seen {
		s.least, s.most, s.seen = v, v, true
		return
	}
	s.least, s.most = min(s.least, v), max(s.most, v)
}

// blend is the weighted mean of the normalised dimensions, 0.5 if all
// candidates are equal.
func blend(ttftSpan, tpotSpan span, ttft, tpot, ttftWeight float64) float64 {
	ttft, ttftDiffers := ttftSpan.place(ttft)
	tpot, tpotDiffers := tpotSpan.place(tpot)
	switch {
	case ttftDiffers && tpotDiffers:
		return ttftWeight*ttft + (1-ttftWeight)*tpot
	case ttftDiffers:
		return ttft
	case tpotDiffers:
		return tpot
	}
	return 0.5
}

func (s *span) place(v float64) (float64, bool) {
	width := s.most - s.least
	if !(width > 1e-9) || math.IsInf(width, 1) {
		return 0, false
	}
	return (v - s.least) / width, true
}
