package transport

import (
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/endpick/endpick"
)

// Some engines refuse a field that they do not know. If one refuses a stream for which usage was
// asked, the client has not caused that: the same engine is asked again without, and, if it
// then answers, never with it again.

// asking is what is known of an endpoint.
type asking uint8

const (
	untried asking = iota
	takes          // a request for usage
	refuses
)

// usageTable has it for each endpoint.
type usageTable struct {
	mu sync.RWMutex
	of endpick.PerEndpoint[asking]
}

func (t *usageTable) get(ref endpick.EndpointRef) asking {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if a := t.of.Find(ref); a != nil {
		return *a
	}
	return untried
}

func (t *usageTable) set(ref endpick.EndpointRef, to asking) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.of.At(ref); a != nil {
		*a = to
	}
}

// askForUsage decides whether this attempt asks for usage that its client has not asked for. After a
// refusal for which that may be the reason, none of the request's attempts does.
func (a *Attempt) askForUsage(before *Attempt) {
	c := a.call
	if before != nil && before.overasked {
		c.unasking = true
		a.without = before.ref == a.ref
	}
	a.asking = c.d.usage.get(a.ref)
	c.body = c.parsed.Body(!c.unasking && a.asking != refuses)
}

// Engines name the field that they refuse; of one that has never taken it, other words for a
// field that should not be there do.
var (
	namesUsage  = regexp.MustCompile("stream_options|include_usage")
	namesFields = regexp.MustCompile("(?i)extra|additional|unknown|unrecogni|unexpected|unsupported|not (permitted|allowed|supported)")
)

// overasks reports whether the endpoint may have refused the request because usage was asked for.
func (a *Attempt) overasks(status int, first []byte) bool {
	return (status == http.StatusBadRequest || status == http.StatusUnprocessableEntity) && a.call.parsed.AsksUsage() &&
		(namesUsage.Match(first) || a.asking == untried && namesFields.Match(first))
}

// asked learns from a response that is none of an error.
func (a *Attempt) asked() {
	usage := &a.call.d.usage
	switch {
	case a.without:
		usage.set(a.ref, refuses)
	case a.asking == untried && a.call.parsed.AsksUsage():
		usage.set(a.ref, takes)
	}
}

// upgradeOf returns the protocols that a client wants to change to, without those that are its
// connection's own: what it says to the gateway is nothing for the endpoint.
func upgradeOf(h http.Header) string {
	var others []string
	for name := range strings.SplitSeq(strings.Join(h["Upgrade"], ","), ",") {
		name = strings.TrimSpace(name)
		protocol, _, _ := strings.Cut(strings.ToLower(name), "/")
		if protocol != "" && protocol != "h2c" && protocol != "http" && protocol != "tls" {
			others = append(others, name)
		}
	}
	return strings.Join(others, ", ")
}
