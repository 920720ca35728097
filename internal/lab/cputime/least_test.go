package cputime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLeast(t *testing.T) {
	n := 0
	require.Less(t, Least(5, 0, func() { n++ }), 30*time.Second)
	require.Equal(t, 5, n)
	n = 0
	Least(5, time.Hour, func() { n++ })
	require.Equal(t, 1, n, "that was enough")
}
