package slo_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFromHeader(t *testing.T) {
	ms := time.Millisecond
	for _, tc := range []struct {
		name       string
		ttft, tpot []string
		want       endpick.SLO
		malformed  []string // headers named by the error
	}{
		{name: "absent"},
		{name: "both", ttft: []string{"200"}, tpot: []string{"50"}, want: endpick.SLO{TTFT: 200 * ms, TPOT: 50 * ms}},
		{name: "one is no zero for the other", tpot: []string{"50"}, want: endpick.SLO{TPOT: 50 * ms}},
		{name: "a fraction and spaces", ttft: []string{" 1.5 "}, want: endpick.SLO{TTFT: 1500 * time.Microsecond}},
		{name: "an exponent", ttft: []string{"2e3"}, want: endpick.SLO{TTFT: 2 * time.Second}},
		{name: "an hour", ttft: []string{"3600000"}, want: endpick.SLO{TTFT: time.Hour}},
		{name: "a millisecond", ttft: []string{"+1"}, tpot: []string{"1.000"}, want: endpick.SLO{TTFT: ms, TPOT: ms}},
		{name: "seconds", ttft: []string{"0.2"}, malformed: []string{slo.TTFTHeader}},
		{name: "just below a millisecond", tpot: []string{"0.9999"}, malformed: []string{slo.TPOTHeader}},
		{name: "less than a nanosecond", tpot: []string{"0.000000001"}, malformed: []string{slo.TPOTHeader}},
		{name: "below the range of a float", tpot: []string{"1e-400"}, malformed: []string{slo.TPOTHeader}},
		{name: "more than an hour", ttft: []string{"3600000.1"}, malformed: []string{slo.TTFTHeader}},
		{name: "over the range of a float", ttft: []string{"1e999"}, malformed: []string{slo.TTFTHeader}},
		{name: "zero", ttft: []string{"0"}, malformed: []string{slo.TTFTHeader}},
		{name: "negative", tpot: []string{"-5"}, malformed: []string{slo.TPOTHeader}},
		{name: "empty", ttft: []string{""}, malformed: []string{slo.TTFTHeader}},
		{name: "half a number", ttft: []string{"2e"}, malformed: []string{slo.TTFTHeader}},
		{name: "a unit", ttft: []string{"200ms"}, malformed: []string{slo.TTFTHeader}},
		{name: "NaN", ttft: []string{"NaN"}, malformed: []string{slo.TTFTHeader}},
		{name: "infinity", ttft: []string{"+Inf"}, malformed: []string{slo.TTFTHeader}},
		{name: "hexadecimal", ttft: []string{"0x10"}, malformed: []string{slo.TTFTHeader}},
		{name: "an underscore", ttft: []string{"1_000"}, malformed: []string{slo.TTFTHeader}},
		{name: "twice", ttft: []string{"200", "300"}, malformed: []string{slo.TTFTHeader}},
		{name: "a list", ttft: []string{"200, 300"}, malformed: []string{slo.TTFTHeader}},
		{name: "one malformed, the other counts", ttft: []string{"x"}, tpot: []string{"50"},
			want: endpick.SLO{TPOT: 50 * ms}, malformed: []string{slo.TTFTHeader}},
		{name: "both malformed", ttft: []string{"x"}, tpot: []string{"y"}, malformed: []string{slo.TTFTHeader, slo.TPOTHeader}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := http.Header{}
			for _, v := range tc.ttft {
				h.Add("x-slo-ttft-ms", v)
			}
			for _, v := range tc.tpot {
				h.Add("x-slo-tpot-ms", v)
			}
			got, err := slo.FromHeader(h)
			assert.Equal(t, tc.want, got)
			if len(tc.malformed) == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorAs(t, err, new(*slo.HeaderError))
			for _, name := range tc.malformed {
				assert.ErrorContains(t, err, name)
			}
		})
	}
}

// Whatever a client sends, a target is either absent or within bounds, and
// never dropped without an error. llm-d's headers count where ours are absent.
func TestFromHeadersOfOthers(t *testing.T) {
	h := http.Header{}
	h.Set("x-llm-d-slo-ttft-ms", "300")
	h.Set("x-llm-d-slo-tpot-ms", "30")
	got, err := slo.FromHeader(h)
	require.NoError(t, err)
	assert.Equal(t, endpick.SLO{TTFT: 300 * time.Millisecond, TPOT: 30 * time.Millisecond}, got)
	h.Set(slo.TTFTHeader, "200")
	h.Set("x-llm-d-slo-tpot-ms", "x")
	got, err = slo.FromHeader(h)
	var bad *slo.HeaderError
	require.ErrorAs(t, err, &bad)
	assert.Equal(t, "X-Llm-D-Slo-Tpot-Ms", bad.Header)
	assert.Equal(t, endpick.SLO{TTFT: 200 * time.Millisecond}, got)
}

func FuzzFromHeader(f *testing.F) {
	for _, s := range []string{"", "1", "0", "-1", "1e3", "NaN", "3600000", "31536000000", "0x1p3", "1_0", "\xff", " 7 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, v string) {
		got, err := slo.FromHeader(http.Header{slo.TTFTHeader: {v}})
		require.Zero(t, got.TPOT)
		require.False(t, got.TTFT != 0 && (got.TTFT < slo.MinTarget || got.TTFT > slo.MaxTarget), "%q: %v is out of bounds", v, got)
		if (got.TTFT == 0) != (err != nil) || (err != nil && !errors.As(err, new(*slo.HeaderError))) {
			t.Fatalf("%q: %v, %v", v, got, err)
		}
	})
}
