package main

import (
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/transport/replica"
	"github.com/stretchr/testify/assert"
)

// What the debug page says of other gateways.
func TestViewOfOthers(t *testing.T) {
	a := replica.Peer{Name: "a", Live: true, InFlight: 3, Age: 2 * time.Second}
	b := replica.Peer{Name: "b", InFlight: 4, Age: time.Second}
	second := replica.Peer{Name: "b", Instance: 1, Live: true}
	with := func(peers ...replica.Peer) replica.Status {
		return replica.Status{Running: true, Connected: true, Peers: peers}
	}
	for _, x := range []struct {
		status         replica.Status
		class, verdict string
	}{
		{replica.Status{}, "soso", "What they do is not known yet."},
		{replica.Status{Running: true}, "bad", "NATS can't be reached. This gateway knows its own requests alone."},
		{with(), "bad", "There is no other gateway. This one knows its own requests alone."},
		{with(b), "bad", "There is no other gateway. This one knows its own requests alone."},
		{with(b, a), "soso", "1 of 2 other gateways are known."},
		{with(a), "good", "What 1 other gateway does counts here."},
		{with(second, a), "good", "What 2 other gateways do counts here."},
	} {
		p := viewOfOthers(x.status, "fleet")
		assert.Equal(t, []any{"fleet", x.class, x.verdict}, []any{p.Fleet, p.Class, p.Verdict})
		assert.Empty(t, p.Notes)
	}
	assert.Equal(t, []replica.Peer{a, b, second}, viewOfOthers(with(second, b, a), "").Peers)

	s := with(a, b)
	s.Refused, s.Malformed, s.Unmirrored, s.TooMany, s.Missed, s.Restarts = 1, 2, 3, 4, 5, 6
	s.Shared, s.Unshared, s.SentBytes, s.SnapshotBytes, s.ReceivedBytes, s.Snapshots, s.UnknownBlocks = 7, 8, 9, 10, 11, 12, 13
	var notes []string
	for _, n := range viewOfOthers(s, "").Notes {
		notes = append(notes, strings.Join(strings.Fields(n)[:3], " "))
	}
	assert.Equal(t, []string{"1 messages were", "2 messages made", "3 requests of", "4 messages came", "5 messages came", "6 times there"}, notes)

	metrics := map[string]float64{}
	for _, m := range sharingMetricList {
		name, _, _ := strings.Cut(strings.TrimPrefix(m.desc.String(), `Desc{fqName: "endpick_replica_`), `"`)
		metrics[name] = m.value(&s)
	}
	assert.Equal(t, map[string]float64{
		"connected": 1, "others": 1, "others_in_flight_requests": 7, "others_age_seconds": 2,
		"refused_total": 1, "malformed_total": 2, "unmirrored_total": 3, "too_many_total": 4, "missed_total": 5, "restarts_total": 6,
		"shared_total": 7, "unshared_total": 8, "sent_bytes_total": 9, "snapshot_bytes_total": 10, "received_bytes_total": 11,
		"snapshots_total": 12, "unknown_blocks_total": 13,
	}, metrics)
	assert.Zero(t, sharingMetricList[0].value(&replica.Status{}))
}
