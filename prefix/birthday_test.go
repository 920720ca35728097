package prefix_test

import (
	"math"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/prefix"
)

// Of n heads of prompts that are as similar as possible, no two have the same hash, and
// as many pairs agree in b bits as for n random numbers, n²/2^(b+1): 512 for the chosen
// b, with a standard deviation of 23.
//
//	ENDPICK_BIRTHDAYS=100000000 go test ./prefix -run TestBirthdays -v -timeout 30m
//
// takes ten minutes and 1 GB; docs/performance.md has its result.
func TestBirthdays(t *testing.T) {
	n := 1 << 17
	if v := os.Getenv("ENDPICK_BIRTHDAYS"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	hashes := make([]uint64, 0, n)
	for i := 0; len(hashes) < n; i++ {
		room := cap(hashes)
		hashes = structured(hashes, i)
		require.Equal(t, room, cap(hashes))
	}
	b := int(math.Round(2*math.Log2(float64(n)) - 10))
	expected := float64(n) * float64(n) / math.Exp2(float64(b+1))
	for _, shift := range []int{0, (64 - b) / 2, 64 - b} {
		// Rotated, so that the bits compared are the highest: sorting brings equal ones together.
		for i, h := range hashes {
			hashes[i] = h<<(64-b-shift) | h>>(b+shift)
		}
		slices.Sort(hashes)
		pairs, same, run := 0, 0, 0
		for i := 1; i < len(hashes); i++ {
			if hashes[i] == hashes[i-1] {
				same++
			}
			if hashes[i]>>(64-b) == hashes[i-1]>>(64-b) {
				run++
				pairs += run
			} else {
				run = 0
			}
		}
		for i, h := range hashes {
			hashes[i] = h>>(64-b-shift) | h<<(b+shift)
		}
		t.Logf("%d blocks: %d equal; %d pairs agree in %d bits from bit %d, %.0f expected", n, same, pairs, b, shift, expected)
		require.Zero(t, same)
		require.InDelta(t, expected, pairs, 6*math.Sqrt(expected))
	}
}

var birthdaySeeds = [3]prefix.Seed{
	prefix.Scope{Key: testKey}.Seed(), prefix.Scope{Key: testKey, Tenant: "a"}.Seed(), prefix.Scope{Key: testKey, Tenant: "b"}.Seed(),
}

// structured appends the blocks of the i-th prompt of 128 tokens, as far as there is
// room. No head occurs twice: its first block has a counter, and identifies the
// family.
func structured(dst []uint64, i int) []uint64 {
	var tokens [128]uint32
	n := uint32(i)
	switch family := i % 5; family {
	case 0: // a counter, and nothing else
		tokens[i/5%16] = n
	case 1: // alternating in two tokens
		tokens[2], tokens[9] = n&0xfff, n>>12<<8
		tokens[15] = 1
	case 2: // one token repeated
		for j := range tokens {
			tokens[j] = n
		}
		tokens[1] = n + 1
	case 3: // ascending
		for j := range tokens {
			tokens[j] = n + uint32(j)
		}
	default: // a template with a number in it, and one later bit set
		for j := range tokens {
			tokens[j] = 1000 + uint32(j)%7
		}
		tokens[5] = n
		tokens[16+i/5%112] ^= 1 << (i / 5 % 32)
	}
	// The same prompts of two tenants are different heads as well.
	seed := birthdaySeeds[i/5%3]
	blocks := prefix.AppendTokens(make([]uint64, 0, 8), seed, tokens[:])
	return append(dst, blocks[:min(len(blocks), cap(dst)-len(dst))]...)
}
