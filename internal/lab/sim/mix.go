package sim

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
)

// Mix assigns the requests of another workload to SLO classes at random. A Mix
// without classes changes nothing.
type Mix struct {
	Workload Workload
	Classes  []MixClass
}

// MixClass is one class of a [Mix]. Shares are divided by their sum.
type MixClass struct {
	// Name is empty for the class without targets, and only for that.
	Name  string
	Share float64
	SLO   endpick.SLO
}

// Start implements [Workload].
func (m Mix) Start(seed uint64) (Source, error) {
	sum := 0.0
	for _, c := range m.Classes {
		sum += c.Share
	}
	source, err := m.Workload.Start(seed)
	if err != nil || len(m.Classes) == 0 {
		return source, err
	}
	return &mixSource{Source: source, classes: m.Classes, sum: sum, seed: engine.Mix(seed ^ mixSalt)}, nil
}

// mixSalt separates the draws of classes from other uses of the seed.
const mixSalt = 0x6d69782d736c6f73

type mixSource struct {
	Source
	classes []MixClass
	sum     float64
	seed    uint64
	taken   uint64
}

// Take implements [Source].
func (s *mixSource) Take() Request {
	r := s.Source.Take()
	s.taken++
	at := float64(engine.Mix(s.seed+s.taken)>>11) / (1 << 53) * s.sum
	class := &s.classes[len(s.classes)-1]
	for i := range s.classes {
		if at -= s.classes[i].Share; at < 0 {
			class = &s.classes[i]
			break
		}
	}
	r.Class, r.SLO = class.Name, class.SLO
	return r
}
