package host

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bad are invalid addresses.
var bad = []string{
	"", "http://", "https:///x", ":80", "http://:80", "//host", "http://[::1", "http://a b", "http://host:port",
	"ftp://host", "HTTPX://host", "unix:///run/socket", "a:1:2", "http://a:1:2", "http://::1:80", "http://%zz", "http://ho\x7fst",
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"host":                     "http://host",
		"host:8000":                "http://host:8000",
		"10.0.0.1:8000":            "http://10.0.0.1:8000",
		"[::1]:8000":               "http://[::1]:8000",
		"[::1]":                    "http://[::1]",
		"http://host/base/":        "http://host/base/",
		"https://user:word@host:1": "https://user:word@host:1",
		"h2c://host:8000":          "h2c://host:8000",
		"HTTP://host":              "http://host",
		"https://[fe80::1%25eth0]": "https://[fe80::1%25eth0]",
	} {
		to, err := Parse(address)
		require.NoError(t, err, address)
		assert.Equal(t, want, to.String(), address)
	}
	for _, address := range bad {
		assert.Equal(t, ErrAddress, rig.Err(Parse(address)), "%q: as it is, since an address may have credentials", address)
		assert.Equal(t, ErrAddress, rig.Err(Of(address, &url.URL{Path: "/"})), address)
		assert.Empty(t, Page(address, "/health"), address)
	}
}

func TestOf(t *testing.T) {
	for _, tc := range [][3]string{
		{"host", "/v1/models", "http://host/v1/models"},
		{"host", "", "http://host"},
		{"host", "/a%2Fb", "http://host/a%2Fb"},
		{"host", "/a?b=c&d=%20", "http://host/a?b=c&d=%20"},
		{"host", "/a?", "http://host/a?"},
		{"http://host/", "/v1", "http://host/v1"},
		{"https://host/base", "/v1", "https://host/base/v1"},
		{"https://host/base/", "/v1/", "https://host/base/v1/"},
		{"https://host/base", "", "https://host/base"},
		{"https://host/ba%2Fse", "/a%2Fb?x", "https://host/ba%2Fse/a%2Fb?x"},
		{"h2c://user:word@host:1/x", "/y", "h2c://user:word@host:1/x/y"},
		{"http://host/x?of=its&own", "/y", "http://host/x/y"},
	} {
		in := rig.Must(url.Parse("http://gateway" + tc[1]))
		before := *in
		to, err := Of(tc[0], in)
		require.NoError(t, err, tc)
		assert.Equal(t, tc[2], to.String())
		assert.Equal(t, before, *in, "it is the client's")
	}
}

func TestPathsThatClimb(t *testing.T) {
	for path, climbs := range map[string]bool{
		"": false, "/": false, "/v1": false, "/a..b": false, "/...": false, "/..a/a..": false, "/.": false,
		"/..": true, "..": true, "/a/..": true, "/a/../b": true, `/a\..\b`: true, `\..`: true, "//..//": true,
	} {
		err := CheckPath(&url.URL{Path: path})
		assert.Equal(t, climbs, err != nil, path)
		_, err = Of("host", &url.URL{Path: path})
		assert.Equal(t, climbs, err != nil, path)
		if climbs {
			require.ErrorAs(t, err, new(*endpick.RequestError))
		}
	}
}

func TestPages(t *testing.T) {
	for address, want := range map[string]string{
		"host:8000":        "http://host:8000/health",
		"http://host/base": "http://host/base/health",
		"https://host/":    "https://host/health",
		"h2c://host/x":     "http://host/x/health",
	} {
		assert.Equal(t, want, Page(address, "/health"))
	}
	assert.Empty(t, Page("host", "/.."))
}

// Whatever path a client sends, it stays at the server and below its base path.
func FuzzOf(f *testing.F) {
	for _, address := range append(bad, "host", "https://u:p@host:1/base/") {
		for _, path := range []string{"/v1/models?a=b", "/..", "/%2e%2e/x", `/..%5c..`, "//other/x", "/a%2Fb", ";x", "?"} {
			f.Add(address, path)
		}
	}
	f.Fuzz(func(t *testing.T, address, path string) {
		in, err := url.Parse(path)
		if err != nil {
			return
		}
		server, err := Parse(address)
		if err != nil {
			return
		}
		to, err := Of(address, in)
		if err != nil {
			return
		}
		if to.Host != server.Host || to.Scheme != server.Scheme || to.User.String() != server.User.String() {
			t.Fatalf("%q of %q goes to %q", path, address, to)
		}
		if base := strings.TrimRight(server.Path, "/"); !strings.Contains(base, "//") && !strings.Contains(base, "/.") && to.Path != base && !strings.HasPrefix(to.Path, base+"/") && base != "" {
			t.Fatalf("%q of %q leaves it for %q", path, address, to)
		}
		require.Equal(t, in.RawQuery, to.RawQuery, path)
	})
}

// An http.Transport goes on connecting when the request has been given up, so the dialer has a
// limit of its own.
func TestConnectingEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	require.Error(t, rig.Err(Client(time.Millisecond, 1).Transport.(*http.Transport).DialContext(ctx, "tcp", "endpick.invalid:80")))
	assert.NoError(t, ctx.Err(), "it waits for as long as it is allowed to")
}
