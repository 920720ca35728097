package predict

import "testing"

func TestDisableStrata(t *testing.T) {
	for target := range targets {
		plain := LatencyConfig{DisableStrata: true}
		if n, err := NewWindow(plain.learner(target).Window); err != nil || n.Buckets() != 1 {
			t.Errorf("%v: %d buckets, %v", targetSets[target], n.Buckets(), err)
		}
		stratified := LatencyConfig{}
		// Ten of KV usage, four of prefix share, five of the queue, eight of variants.
		if n, err := NewWindow(stratified.learner(target).Window); err != nil || n.Buckets() != 10*4*5*8 {
			t.Errorf("%v: %d buckets, %v", targetSets[target], n.Buckets(), err)
		}
	}
}
