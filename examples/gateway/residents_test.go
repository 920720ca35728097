package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/require"
)

// The page says where models are in memory, what was loaded, and why.
func TestModelsOnThePage(t *testing.T) {
	server := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"model":"m","response":" so","done":true,"load_duration":6000000000,"prompt_eval_count":2,"eval_count":1}`))
	})
	ofItsOwn := plain("lmetric")
	ofItsOwn.Models = map[string]modelSettings{"m": {Policy: "marginal-delay"}}
	for _, s := range []*settings{plain("marginal-delay"), ofItsOwn} {
		g := gatewayOf(t, s,
			endpick.Endpoint{ID: "a", Address: server.URL, Residents: []endpick.Resident{{Model: "m"}, {Model: "n", State: endpick.InMemory}}},
			endpick.Endpoint{ID: "b", Address: "http://127.0.0.1:1", Residents: []endpick.Resident{{Model: "n", State: endpick.Loading}}, Models: []string{"n"}})
		w := askFor(g, "/api/generate", `{"model":"m","prompt":"x","stream":false}`)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		shown := strings.Join(strings.Fields(textIn(page(t, see(t, g.admin, "/debug/endpick")))), " ")
		require.Contains(t, shown, "m–1111, 0, 06.00 s na, b (loading)0000, 0, 0–")
	}
}
