package host

import (
	"errors"
	"net"
	"net/http"
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

// IsDial reports whether a connection could not even be made.
func IsDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// IsTimeout reports whether time was up.
func IsTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
