package transport

import (
	"context"
	"io"
	"net"
)

// dialTCP dials connections that write long bodies without copying them.
func dialTCP(dialer *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &payloadConn{c}, nil
	}
}

// payloadConn writes a payload without copying it, in as few calls as possible:
// net/http passes what does not fit into its buffer with the header to
// ReadFrom.
type payloadConn struct{ net.Conn }

// ReadFrom is what io.Copy calls.
func (c *payloadConn) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if p, ok := l.R.(*payloadReader); ok {
			n, err := p.writeTo(c.Conn, l.N)
			l.N -= n
			return n, err
		}
	}
	return io.Copy(c.Conn, r)
}
