package rig

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOrders(t *testing.T) {
	var all [][]int
	for order := range Orders(2, 1) {
		all = append(all, slices.Clone(order))
	}
	assert.Equal(t, [][]int{{0, 0, 1}, {0, 1, 0}, {1, 0, 0}}, all)

	seen := map[string]bool{}
	for order := range Orders(3, 0, 2, 2) {
		for thread, steps := range []int{3, 0, 2, 2} {
			n := 0
			for _, of := range order {
				if of == thread {
					n++
				}
			}
			assert.Equal(t, steps, n)
		}
		seen[fmt.Sprint(order)] = true
	}
	assert.Len(t, seen, 210) // 7! / (3! 2! 2!)

	n := 0
	for range Orders(5, 5) {
		if n++; n == 3 {
			break
		}
	}
	assert.Equal(t, 3, n)
}

func TestExplore(t *testing.T) {
	var all []string
	Explore(func(choose func(int) int) {
		way := fmt.Sprint(choose(2))
		if way == "1" {
			way += fmt.Sprint(choose(1), choose(3))
		}
		all = append(all, way)
	})
	assert.Equal(t, []string{"0", "10 0", "10 1", "10 2"}, all)

	n := 0
	Explore(func(func(int) int) { n++ })
	assert.Equal(t, 1, n, "where nothing is chosen")
}

func TestLeastTime(t *testing.T) {
	n := 0
	require.Less(t, LeastTime(5, 0, func() { n++ }), 30*time.Second)
	require.Equal(t, 5, n)
	n = 0
	LeastTime(5, time.Hour, func() { n++ })
	require.Equal(t, 1, n, "that was enough")
}
