package hostclock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := time.Unix(1000, 0)
		assert.Equal(t, time.Now(), Guard(nil, nil)())
		assert.Equal(t, at, Guard(func() time.Time { return at }, nil)())
		var heard []any
		for _, told := range []func(any){nil, func(v any) { heard = append(heard, v) }} {
			assert.Equal(t, time.Now(), Guard(func() time.Time { panic("boom") }, told)())
		}
		assert.Equal(t, []any{"boom"}, heard)
	})
}
