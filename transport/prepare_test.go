package transport_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

func TestNamesThatCannotBeAreRefused(t *testing.T) {
	e := startEngine(t, nil)
	long, half := strings.Repeat("é", 128), "llama\xc3"
	for name, tc := range map[string]struct {
		model, session, adapter, tenant string
		field                           string // empty: served
	}{
		"all as long as can be": {long, long, long, long, ""},
		"none":                  {"", "", "", "", ""},
		"model too long":        {long + "m", "", "", "", "model"},
		"session too long":      {"m", long + "s", "", "", transport.SessionHeader},
		"adapter too long":      {"m", "", long + "a", "", "adapter"},
		"tenant too long":       {"m", "", "", long + "t", "tenant"},
		"model cut":             {half, "", "", "", "model"},
		"one byte":              {"\xff", "", "", "", "model"},
		"session cut":           {"m", half, "", "", transport.SessionHeader},
		"adapter cut":           {"m", "", half, "", "adapter"},
		"tenant cut":            {"m", "", "", half, "tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			before := e.requests.Load()
			w := newWorld(t, transport.Config{Describe: func(_ *http.Request, _ []byte, req *endpick.Request) {
				assert.False(t, req.Model == half || len(req.Model) > 256 || req.Session == half, "a host need not reckon with it")
				req.Adapter, req.Tenant = tc.adapter, tc.tenant
			}})
			require.NoError(t, w.router.Add(endpick.Endpoint{ID: "a", Address: e.URL}))
			req := post(t, completions, `{"stream":true,"prompt":"x","model":"`+tc.model+`"}`)
			if tc.session != "" {
				req.Header[transport.SessionHeader] = []string{tc.session}
			}
			_, _, err := w.do(t, req)
			if tc.field == "" {
				require.NoError(t, err)
				assert.Equal(t, before+1, e.requests.Load())
				return
			}
			var bad *endpick.RequestError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, tc.field, bad.Field)
			assert.Equal(t, 400, transport.StatusOf(err))
			assert.Equal(t, before, e.requests.Load(), "no engine gets to see it")
			w.idle(t)
		})
	}
}

// The errors that a client can do something about are those of OpenAI's API.
func TestErrorsAreThoseOfTheAPI(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{})
	ask := func(body string) (int, string) {
		_, _, err := w.do(t, post(t, completions, body))
		require.Error(t, err)
		rec := httptest.NewRecorder()
		transport.ErrorHandler(rec, nil, err)
		return rec.Code, rec.Body.String()
	}
	code, text := ask(`{"model":"nobody's","prompt":"x"}`)
	assert.Equal(t, 503, code, text)
	assert.Contains(t, text, `"code":"503"`, "there are no servers at all, which says nothing of the model")

	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "a", Address: e.URL, Models: []string{"m"}}))
	code, text = ask(`{"model":"nobody's","prompt":"x"}`)
	assert.Equal(t, 404, code)
	assert.Equal(t, "{\"error\":{\"message\":\"the model `nobody's` does not exist\",\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}", text)

	require.NoError(t, w.router.Drain("a"))
	code, text = ask(`{"model":"m","prompt":"x"}`)
	assert.Equal(t, 503, code, text)

	code, text = ask("{\"model\":\"\xff\",\"prompt\":\"x\"}")
	assert.Equal(t, 400, code)
	assert.Equal(t, `{"error":{"message":"model is not valid UTF-8","type":"invalid_request_error","param":"model","code":"400"}}`, text)
}
