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
	answersKey        = "endpick-answers" // no part of it: what examples/epp/envoy.yaml tells besides
	subsetKey         = "x-gateway-destination-endpoint-subset"
	balancerNamespace = "envoy.lb"
	subsetNamespace   = "envoy.lb.subset_hint"
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
