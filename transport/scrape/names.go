package scrape

import (
	"regexp"
	"strings"

	"github.com/endpick/endpick/internal/check"
)

// Names are the metrics of an engine that this package does not know. Each is a name,
// or a name and the value of one label: `requests{state="waiting"}`. They take
// precedence over known ones. A signal that is left out is read as usual.
type Names struct {
	Waiting string // requests in the queue
	Running string // requests in the batch
	KVUsage string // share of the KV cache in use, in [0, 1]
}

var selector = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:.]*)(?:\{([a-zA-Z_][a-zA-Z0-9_]*)="([^"]*)"\})?$`)

// signals are the series that may hold each signal.
type signals struct{ waiting, running, kvUsage []series }

// signals returns the given names, followed by the known ones.
func (n *Names) signals() (s signals, err error) {
	for _, f := range []struct {
		field, name string
		known       []series
		to          *[]series
	}{
		{"Waiting", n.Waiting, waiting, &s.waiting}, {"Running", n.Running, running, &s.running}, {"KVUsage", n.KVUsage, kvUsage, &s.kvUsage},
	} {
		*f.to = f.known
		if f.name == "" {
			continue
		}
		m := selector.FindStringSubmatch(f.name)
		if m == nil {
			return s, check.Bad("scrape.Config.Names."+f.field, "%q is not the name of a metric, with or without one label", f.name)
		}
		own := series{strings.ReplaceAll(m[1], ":", "_"), m[2], m[3]}
		*f.to = append([]series{own}, f.known...)
	}
	return s, nil
}
