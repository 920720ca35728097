package health

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A refusal for lack of a model counts once another endpoint has served it: then the endpoint is avoided
// for that model, for a while, and its refusals are not believed.
func TestWhoLacksAModel(t *testing.T) {
	c := newCluster("a", "b")
	refuse := func(model string, served bool) (ask bool) {
		a := c.send("a").Lacking(Lack{Model: model})
		ask = a.Ended(Refused)
		var s Suspects
		s.Add(a, Refused)
		if served {
			s.Served()
		}
		return ask
	}
	for range opinionBurst {
		assert.True(t, refuse("m", false), "even the first, of which there may be many")
	}
	assert.False(t, refuse("m", false), "but not all")
	assert.Empty(t, c.AvoidFor(nil, "m", ""))
	refuse("m", true)
	assert.Equal(t, []string{"x", "a"}, c.AvoidFor([]string{"x"}, "m", ""))
	assert.Empty(t, c.AvoidFor(nil, "n", ""))
	for range 10 {
		assert.True(t, refuse("m", true), "it is known to be wrong")
		assert.False(t, refuse("n", false))
	}
	assert.False(t, c.send("b").Lacking(Lack{Model: "m"}).knownToLack())
	assert.Zero(t, c.Unhealthy())
	assert.Len(t, c.lacks, 1)
	c.at = c.at.Add(lacksFor - 1)
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "m", ""))
	c.at = c.at.Add(1)
	assert.Empty(t, c.AvoidFor(nil, "m", ""))
	assert.True(t, refuse("m", false))

	for i := range maxLacks {
		refuse(fmt.Sprint(i), true)
		if i == maxLacks/2 {
			refuse("m", true) // so that others are older
		}
	}
	assert.Len(t, c.lacks, maxLacks)
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "m", ""))
	assert.Empty(t, c.AvoidFor(nil, "0", ""), "the oldest has given way")
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "1", ""))
	c.lacks = nil
	for _, l := range []Lack{{"m", "/v1/messages"}, {}} {
		s := Suspects{{c.send("a").Lacking(l), Refused}}
		s.Served()
	}
	assert.Equal(t, []string{"a"}, c.AvoidFor(nil, "m", "/v1/messages"))
	assert.Empty(t, c.AvoidFor(nil, "m", "/v1/responses"))
	assert.Empty(t, c.AvoidFor(nil, "n", "/v1/messages"), "names are clients' to invent")
	assert.Empty(t, c.AvoidFor(nil, "", ""))
	c.remove("a")
	c.add("a")
	assert.Empty(t, c.AvoidFor(nil, "m", "/v1/messages"), "it may be another one")
}
