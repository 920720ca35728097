package whole

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
)

// byChance are faults with two possible views, with and without a good server: a reset
// discards unread data, or comes before the connection is established; and ReverseProxy
// may or may not send the header of a response without any body.
var byChance = map[string][2]chance{
	"resets the connection before it reads the request": {{[]string{failed502, nobody503}, "failed"}, {[]string{toItsEnd}, "failed, completed"}},
	"resets the connection in the middle of the body":   {{[]string{cutOff, failed502}, "failed"}, {[]string{cutOff, toItsEnd}, "failed or failed, completed"}},
	"resets the connection in the middle of a stream":   {{[]string{cutOff, failed502}, "failed"}, {[]string{cutOff, toItsEnd}, "failed or failed, completed"}},
	"compresses, and closes in the middle":              {{[]string{cutOff, breaks}, "failed"}, {[]string{cutOff, breaks}, "failed"}},
	"declares gzip and sends plain text":                {{[]string{cutOff, breaks}, "failed"}, {[]string{cutOff, breaks}, "failed"}},
	"compresses a stream, and closes in the middle":     {{[]string{cutOff, breaks}, "failed"}, {[]string{cutOff, breaks}, "failed"}},
}

type chance struct {
	saw    []string
	leases string // as in the table
}

const (
	failed502 = "502 “the model server failed before it answered”"
	nobody503 = "503 “no server is available for this model”"
	cutOff    = "200, cut off"
	toItsEnd  = "200, complete"
	breaks    = "a connection that breaks"
)

func serverFaults(t *testing.T) []row {
	return each(t, transporttest.Faults(), func(t *testing.T, name string) []string {
		var cells []string
		for _, beside := range []bool{false, true} {
			e := transporttest.StartEngine(t, name)
			addresses := []string{e.Address}
			if beside {
				if e.Leaves {
					return append(cells, "–", "–")
				}
				addresses = append(addresses, good(t))
			}
			g := newGateway(t, transport.Config{}, endpick.Config{}, addresses...)
			var leaves <-chan struct{}
			if e.Leaves {
				leaves = e.Asked
			}
			saw := g.ask(t, e.Stream, leaves)
			ended := g.leases(t)
			if some, ok := byChance[name]; ok {
				this := some[len(addresses)-1]
				if !slices.Contains(this.saw, saw) || !strings.Contains(this.leases, ended) {
					assert.Fail(t, "none of what it may be", "%q, %s", saw, ended)
				}
				saw, ended = strings.Join(this.saw, " or "), this.leases
			}
			cells = append(cells, saw, ended)
		}
		return cells
	})
}
