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
		if tcp, ok := c.(*net.TCPConn); ok {
			c = &payloadConn{tcp}
		}
		return c, err
	}
}

// payloadConn writes a payload without copying it, in as few calls as possible:
// net/http passes what does not fit into its buffer with the header to
// ReadFrom. It keeps the methods of the connection, such as CloseWrite.
type payloadConn struct{ *net.TCPConn }

// ReadFrom is what io.Copy calls.
func (c *payloadConn) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if p, ok := l.R.(*payloadReader); ok {
			n, err := p.writeTo(c.TCPConn, l.N)
			l.N -= n
			return n, err
		}
	}
	return c.TCPConn.ReadFrom(r)
}
