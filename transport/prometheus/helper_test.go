package prometheus_test

import (
	"strings"

	"github.com/endpick/endpick"
)

// slow is a predictor without predictions.
type slow struct{}

func (slow) Predict(*endpick.Request, []endpick.Candidate) {}

type bomb struct{}

func (bomb) Predict(*endpick.Request, []endpick.Candidate) { panic("boom") }

// listener is a predictor that records its calls.
type listener struct {
	endpick.Exclusive
	strings.Builder
}

func (l *listener) Predict(*endpick.Request, []endpick.Candidate) { l.WriteString("predict ") }
func (l *listener) Routed(*endpick.Event)                         { l.WriteString("routed ") }
func (l *listener) FirstToken(*endpick.Event)                     { l.WriteString("first ") }
func (l *listener) Done(*endpick.Event, *endpick.Outcome)         { l.WriteString("done ") }
func (l *listener) EndpointRemoved(endpick.EndpointRef)           { l.WriteString("removed ") }
