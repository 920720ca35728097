package host

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := time.Unix(1000, 0)
		assert.Equal(t, time.Now(), Clock(nil, nil)())
		assert.Equal(t, at, Clock(func() time.Time { return at }, nil)())
		var heard []any
		for _, reported := range []func(any){nil, func(v any) { heard = append(heard, v) }} {
			assert.Equal(t, time.Now(), Clock(func() time.Time { panic("boom") }, reported)())
		}
		assert.Equal(t, []any{"boom"}, heard)
	})
}
