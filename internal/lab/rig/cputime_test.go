package rig

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLeastTime(t *testing.T) {
	n := 0
	require.Less(t, LeastTime(5, 0, func() { n++ }), 30*time.Second)
	require.Equal(t, 5, n)
	n = 0
	LeastTime(5, time.Hour, func() { n++ })
	require.Equal(t, 1, n, "that was enough")
}
