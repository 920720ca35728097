package extproc

import (
	"net/http"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// The names in protocol 004.
const (
	// DestinationHeader carries the chosen server and those to try after it, as
	// ip:port, separated by commas. The metadata has the same name.
	DestinationHeader = "x-gateway-destination-endpoint"

	servedKey         = "x-gateway-destination-endpoint-served"
	answersKey        = "endpick-answers" // is no part of it: see examples/epp/envoy.yaml
	subsetKey         = "x-gateway-destination-endpoint-subset"
	balancerNamespace = "envoy.lb"
	subsetNamespace   = "envoy.lb.subset_hint"

	objectiveHeader = "X-Gateway-Inference-Objective"
	fairnessHeader  = "X-Gateway-Inference-Fairness-Id"
)

// Config configures a [Server]. All fields except Dispatcher.Router are optional.
type Config struct {
	// Dispatcher says how requests are read and endpoints chosen; see
	// [transport.NewDispatcher]. The addresses of its Router's endpoints must be an IP
	// and a port, as the protocol requires, or URLs with these; scheme and path are up
	// to the proxy. MaxAttempts and the retry settings are ignored, because the proxy
	// retries.
	Dispatcher transport.Config
	// Buffered says that a proxy that does not announce how it sends request
	// bodies uses mode BUFFERED.
	Buffered bool
	// RequireModel refuses a POST whose body names no model, with 400, as the extension's own
	// picker does. Forms are exempt. By default any server may get it.
	RequireModel bool
	// Objectives are the priorities of the extension's InferenceObjectives, by name. If it is
	// not nil, the header x-gateway-inference-objective says which one is the request's, and
	// x-gateway-inference-fairness-id its Tenant. Any client can write them unless the
	// gateway sets or removes them. Nil: they are not read.
	Objectives map[string]int
	// Describe may set what the server can't know, such as the Tenant, and change
	// what it read from the headers. It is called before the prompt is hashed, from
	// many goroutines. It must not change header or body, nor keep req. Nil: there
	// are no tenants.
	Describe func(header http.Header, body []byte, req *endpick.Request)
	// DrainTimeout is how long open streams may continue after the context of Serve
	// is done. Zero: 30 seconds.
	DrainTimeout time.Duration
	// Warn is called for problems with requests that were served anyway, for
	// endpoints with unusable addresses, and for panics of Describe. It is called
	// from many goroutines. Nil: not called.
	Warn func(error)
}
