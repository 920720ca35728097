package prometheus

import (
	"fmt"
	"time"

	"github.com/endpick/endpick"
	prom "github.com/prometheus/client_golang/prometheus"
)

// Predictor returns a predictor that passes everything on to p and times it; nil
// if p is. It is no predict.Latency or delay.Marginal, even if p is one: keep p, and the
// policy without it, for [Sources] and for all.Reuse.
func (m *Metrics) Predictor(p endpick.Predictor) endpick.Predictor {
	if p == nil {
		return nil
	}
	return &predictor{p, m.series.predicting}
}

type predictor struct {
	endpick.Predictor
	took prom.Histogram
}

func (p *predictor) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	began := time.Now()
	p.Predictor.Predict(req, candidates)
	p.took.Observe(time.Since(began).Seconds())
}

// Observer returns the predictor that is timed, which observes requests.
func (p *predictor) Observer() any { return p.Predictor }

// Name is what receipts show.
func (p *predictor) Name() string {
	if n, ok := p.Predictor.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", p.Predictor)
}
