package endpick_test

import (
	"fmt"
	"testing"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
)

// A model is found by its names, with or without Ollama's tag for the latest.
func TestResident(t *testing.T) {
	e := endpick.Endpoint{Residents: []endpick.Resident{
		{Model: "a:latest"}, {Model: "b", State: endpick.Loading}, {Model: "c:7b", State: endpick.InMemory}, {Model: "d:latest "}, {Model: "e", Aliases: []string{"f", "g"}},
	}}
	for model, want := range map[string]string{
		"a": "a:latest, on disk", "a:latest": "a:latest, on disk", "b": "b, loading", "c:7b": "c:7b, in memory",
		"c": "", "b:latest": "", "": "", "d": "", "a:lates": "", "g": "e, on disk", "g:latest": "",
	} {
		got := ""
		if r := e.Resident(model); r != nil {
			got = fmt.Sprint(r.Model, ", ", r.State)
		}
		assert.Equal(t, want, got, model)
	}
	assert.Equal(t, "unknown", (endpick.InMemory + 1).String())
}
