package target

import (
	"net"
	"net/http"
	"time"
)

// Client asks servers for pages about themselves, each within this time. It follows no
// redirects, so that a server can't send it elsewhere.
func Client(within time.Duration) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			// Connecting continues after the request has been given up.
			DialContext: (&net.Dialer{Timeout: within}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
