package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/endpick/endpick/transport/replica"
	prom "github.com/prometheus/client_golang/prometheus"
)

// othersPage is the debug page's part about other gateways.
type othersPage struct {
	replica.Status
	Fleet, Class, Verdict string
	Notes                 []string // what is wrong, and what to do
}

func (g *gateway) others() *othersPage {
	now := g.sharing.shared.Load()
	if now == nil {
		return nil
	}
	return viewOfOthers(now.replica.Status(), now.Fleet)
}

func viewOfOthers(s replica.Status, fleet string) *othersPage {
	p := &othersPage{Status: s, Fleet: fleet, Class: "good"}
	slices.SortFunc(p.Peers, func(a, b replica.Peer) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
	})
	n := live(&p.Status)
	switch {
	case !p.Running:
		p.Class, p.Verdict = "soso", "What they do is not known yet."
	case !p.Connected:
		p.Class, p.Verdict = "bad", "NATS can't be reached. This gateway knows its own requests alone."
	case n == 0:
		p.Class, p.Verdict = "bad", "There is no other gateway. This one knows its own requests alone."
	case n < len(p.Peers):
		p.Class, p.Verdict = "soso", fmt.Sprintf("%d of %d other gateways are known.", n, len(p.Peers))
	default:
		p.Verdict = fmt.Sprintf("What %d other %s counts here.", n, plural(n, "gateway does", "gateways do"))
	}
	note := func(count uint64, format string) {
		if count > 0 {
			p.Notes = append(p.Notes, fmt.Sprintf(format, count))
		}
	}
	note(p.Refused, "%d messages were refused: somebody has another hash_key, or none.")
	note(p.Malformed, "%d messages made no sense: somebody runs another version.")
	note(p.Unmirrored, "%d requests of others were not counted: they know endpoints by an id that is not here.")
	note(p.TooMany, "%d messages came from more gateways than there can be.")
	note(p.Missed, "%d messages came too fast; what was missed was asked for.")
	note(p.Restarts, "%d times there was more to tell than could be told, and this gateway began anew as another.")
	return p
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// brieflyAgo is the age of another's last message.
func brieflyAgo(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }

// sharingMetrics are a replica's status, while there is one. The router's own metrics
// have the number of mirrored requests.
type sharingMetrics struct{ of *sharing }

type sharingMetric struct {
	desc  *prom.Desc
	kind  prom.ValueType
	value func(*replica.Status) float64
}

var sharingMetricList = func() (all []sharingMetric) {
	add := func(kind prom.ValueType, name, help string, value func(*replica.Status) float64) {
		all = append(all, sharingMetric{prom.NewDesc("endpick_replica_"+name, help, nil, nil), kind, value})
	}
	count := func(name, help string, of func(*replica.Status) uint64) {
		add(prom.CounterValue, name+"_total", help, func(s *replica.Status) float64 { return float64(of(s)) })
	}
	add(prom.GaugeValue, "connected", "Whether NATS can be reached, as far as is known.", func(s *replica.Status) float64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	add(prom.GaugeValue, "others", "Other gateways whose requests are known here.", func(s *replica.Status) float64 { return float64(live(s)) })
	add(prom.GaugeValue, "others_in_flight_requests", "Requests that other gateways have in flight.", func(s *replica.Status) (n float64) {
		for _, p := range s.Peers {
			n += float64(p.InFlight)
		}
		return n
	})
	add(prom.GaugeValue, "others_age_seconds", "How long ago something new came of the one that is heard of least.", func(s *replica.Status) float64 {
		var oldest time.Duration
		for _, p := range s.Peers {
			oldest = max(oldest, p.Age)
		}
		return oldest.Seconds()
	})
	count("shared", "Requests that others were told of.", func(s *replica.Status) uint64 { return s.Shared })
	count("unshared", "Requests that others were not told of: too many in flight, or names too long.", func(s *replica.Status) uint64 { return s.Unshared })
	count("sent_bytes", "Bytes told, snapshots among them.", func(s *replica.Status) uint64 { return s.SentBytes })
	count("snapshot_bytes", "Of the bytes told, those of snapshots.", func(s *replica.Status) uint64 { return s.SnapshotBytes })
	count("received_bytes", "Bytes of other gateways.", func(s *replica.Status) uint64 { return s.ReceivedBytes })
	count("snapshots", "Snapshots of others taken in: at the beginning, and where something was missing.", func(s *replica.Status) uint64 { return s.Snapshots })
	count("unmirrored", "Requests of others that were not counted here: too many, or at an endpoint that is not here.", func(s *replica.Status) uint64 { return s.Unmirrored })
	count("unknown_blocks", "Requests of others whose blocks had to be asked for.", func(s *replica.Status) uint64 { return s.UnknownBlocks })
	count("missed", "Messages that came too fast to be taken in.", func(s *replica.Status) uint64 { return s.Missed })
	count("refused", "Messages of somebody with another key.", func(s *replica.Status) uint64 { return s.Refused })
	count("malformed", "Messages that make no sense.", func(s *replica.Status) uint64 { return s.Malformed })
	count("too_many", "Messages of gateways beyond the 64th.", func(s *replica.Status) uint64 { return s.TooMany })
	count("restarts", "Times that telling could not keep up and began anew.", func(s *replica.Status) uint64 { return s.Restarts })
	return all
}()

// Describe implements prom.Collector.
func (m sharingMetrics) Describe(out chan<- *prom.Desc) {
	for _, x := range sharingMetricList {
		out <- x.desc
	}
}

// Collect implements prom.Collector.
func (m sharingMetrics) Collect(out chan<- prom.Metric) {
	s, ok := m.of.status()
	if !ok {
		return
	}
	for _, x := range sharingMetricList {
		out <- prom.MustNewConstMetric(x.desc, x.kind, x.value(&s))
	}
}
