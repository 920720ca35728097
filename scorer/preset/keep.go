package preset

import (
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
)

// Keep is [ByName] for a router that is running with another policy, for use with
// [endpick.Router.SetPolicy]. The new policy takes over the running policy's matcher
// and, if both use a [predict.Latency], its predictor; its other stages then use those.
func Keep(name string, running endpick.Policy) (endpick.Config, error) {
	c, err := ByName(name)
	if err != nil {
		return c, err
	}
	parts := strings.Split(name, ":")
	if _, predicts := c.Policy.Predictor.(*predict.Latency); predicts {
		p, _ := predictedLatency(parts[1:]) // ByName has validated them
		if learned, ok := running.Predictor.(*predict.Latency); ok {
			p.Learned, p.Latency = learned, predict.LatencyConfig{}
		}
		if c, err = PredictedLatency(p); err != nil {
			return c, err
		}
		c.Policy.Name = name
	}
	if c.Policy.Matcher != nil && running.Matcher != nil {
		c.Policy.Matcher = running.Matcher
	}
	return c, nil
}
