package extproctest

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/endpick/endpick/transport/extproc"
)

// Start serves a picker on a local port, without TLS, and connects to it for
// [Proxy.Picker]. stop closes the connection and waits until the picker has ended.
func Start(picker *extproc.Server) (conn *grpc.ClientConn, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	ctx, drain := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- picker.Serve(ctx, l) }()
	conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		drain()
		return nil, nil, errors.Join(err, <-ended)
	}
	return conn, func() error {
		err := conn.Close()
		drain()
		return errors.Join(err, <-ended)
	}, nil
}
