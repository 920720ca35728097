package all

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
)

// Reuse is [ByName] for a router that is running with another policy, for use with
// [endpick.Router.SetPolicy]. The new policy takes over the running policy's matcher
// and, if both use a [predict.Latency], its predictor.
func Reuse(name string, running endpick.Policy) (endpick.Config, error) {
	c, err := ByName(name)
	if err != nil {
		return c, err
	}
	if _, predicts := c.Policy.Predictor.(predict.Latency); predicts {
		if learned, ok := running.Predictor.(predict.Latency); ok {
			c.Policy.Predictor = learned
		}
	}
	if c.Policy.Matcher != nil && running.Matcher != nil {
		c.Policy.Matcher = running.Matcher
	}
	return c, nil
}
