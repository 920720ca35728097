package host

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Client asks servers about themselves, each within this time, and keeps so many idle
// connections to each. It follows no redirects, so that a server can't send it elsewhere,
// and knows no proxy, because servers are near.
func Client(within time.Duration, idle int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			// Connecting continues after the request has been given up.
			DialContext: (&net.Dialer{Timeout: within}).DialContext, MaxIdleConnsPerHost: idle, IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Drain reads what is left of a response, at most so many bytes, so that its connection can be used again.
func Drain(r *http.Response, most int64) {
	if r.StatusCode != http.StatusSwitchingProtocols { // of which no context ends the body
		_, _ = io.CopyN(io.Discard, r.Body, most)
	}
}

// IsDial reports whether a connection could not even be made.
func IsDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// IsOwn reports whether that was for want of files here; a name that was looked up in vain has only the words.
func IsOwn(err error) bool {
	return IsDial(err) && (strings.Contains(err.Error(), syscall.EMFILE.Error()) || strings.Contains(err.Error(), syscall.ENFILE.Error()))
}

// IsTimeout reports whether time was up.
func IsTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
