package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/delay"
)

// debugModel is a model on the page, of servers that load models when they are asked for.
type debugModel struct {
	Name   string
	There  []string // servers that have it in memory, or are loading it
	OnDisk int      // how many others have it
	Loads  delay.Loads
}

// addModels fills in where each model is, by name.
func (p *debugPage) addModels(servers []endpick.EndpointStatus, counts delay.Marginal) {
	rows := map[string]*debugModel{}
	for _, s := range servers {
		e := s.Candidate.Endpoint
		for i := range e.Residents {
			r := &e.Residents[i]
			m := rows[r.Model]
			if m == nil {
				m = &debugModel{Name: r.Model}
				rows[r.Model] = m
			}
			switch r.State {
			case endpick.InMemory:
				m.There = append(m.There, e.ID)
			case endpick.Loading:
				m.There = append(m.There, e.ID+" (loading)")
			default:
				m.OnDisk++
			}
		}
	}
	if counts != nil {
		for _, l := range counts.Loads() {
			if m := rows[l.Model]; m != nil {
				m.Loads = l
			}
		}
	}
	p.Models = slices.SortedFunc(maps.Values(rows), func(a, b *debugModel) int { return strings.Compare(a.Name, b.Name) })
}
