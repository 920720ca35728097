package health

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestElsewhere(t *testing.T) {
	for _, x := range []struct {
		name string
		do   func(c *cluster)
		out  []string
	}{
		{"three failures", func(c *cluster) { c.Elsewhere("a", 3, 0) }, []string{"a"}},
		{"in three parts", func(c *cluster) { c.Elsewhere("a", 1, 0); c.Elsewhere("a", 1, 0); c.Elsewhere("a", 1, 0) }, []string{"a"}},
		{"two", func(c *cluster) { c.Elsewhere("a", 2, 5) }, nil},
		{"none, or fewer", func(c *cluster) { c.Elsewhere("a", 0, 0); c.Elsewhere("a", -5, 0) }, nil},
		{"few among many", func(c *cluster) { c.Elsewhere("a", 3, 9) }, nil},
		{"somebody who is not here", func(c *cluster) { c.Elsewhere("z", 9, 0) }, nil},
		{"it serves us", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			v := c.send("a")
			v.Heard()
			c.Elsewhere("a", 1, 0)
		}, nil},
		{"it served us before", func(c *cluster) {
			c.send("a").Heard()
			c.Elsewhere("a", 2, 0)
			c.Elsewhere("a", 1, 0)
		}, []string{"a"}},
		{"long ago", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			c.at = c.at.Add(time.Minute)
			c.Elsewhere("a", 2, 0)
		}, nil},
		{"half of the endpoints", func(c *cluster) { c.Elsewhere("a", 2, 0); c.Elsewhere("b", 3, 0) }, []string{"b"}},
		{"more than half of them", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			c.Elsewhere("b", 2, 0)
			c.Elsewhere("c", 3, 0)
		}, nil},
		{"all of them, one after the other", func(c *cluster) {
			for _, id := range []string{"a", "b", "c", "d"} {
				c.Elsewhere(id, 20, 0)
			}
		}, []string{"a", "b"}},
		{"as many failed as served", func(c *cluster) { c.Elsewhere("a", 3, 3) }, []string{"a"}},
		{"although requests go on", func(c *cluster) {
			c.Elsewhere("a", 2, 0)
			c.Avoid(nil)
			c.Elsewhere("b", 2, 0)
			c.Avoid(nil)
			c.Elsewhere("c", 3, 0)
		}, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newCluster("a", "b", "c", "d")
			x.do(c)
			assert.Equal(t, x.out, c.Out(nil))
			c.at = c.at.Add(firstBackoff)
			assert.Empty(t, c.Out(nil), "a trial is due")
		})
	}
	c := newCluster("a")
	c.Elsewhere("a", 9, 0)
	assert.Empty(t, c.Out(nil), "there is nobody else")
}

func TestTell(t *testing.T) {
	c := newCluster("a", "b")
	var reported []string
	c.Tell(func(id string, failed bool) {
		if failed {
			id += " failed"
		}
		reported = append(reported, id)
	})
	c.served(c.send("a"), true, 0)
	assert.Empty(t, reported, "all is well")
	c.failed(c.send("a"), false)
	c.served(c.send("a"), true, 0)
	c.served(c.send("b"), true, 0)
	assert.Equal(t, []string{"a failed", "a"}, reported)
	c.failed(c.send("a"), false)
	c.failed(c.send("a"), false)
	c.failed(c.send("a"), false)
	c.failed(c.send("a"), false)
	assert.Equal(t, []string{"a"}, c.Out(nil))
	assert.Len(t, reported, 4, "what is known already is not told")
	other := 0
	c.Tell(func(string, bool) { other++ })
	c.failed(c.send("b"), false)
	c.Tell(nil)
	c.failed(c.send("b"), false)
	assert.Equal(t, 1, other)
	assert.Len(t, reported, 4, "another is told")
}
