package extproc

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"runtime/debug"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/transport"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Server is an endpoint picker. Make one with [New]. It is safe for concurrent use.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	config     Config
	router     *endpick.Router
	dispatcher *transport.Dispatcher
	health     *health.Server
}

// New returns a server, which is ready, or an [endpick.ConfigError].
func New(config Config) (*Server, error) {
	if err := check.Default("extproc.Config.DrainTimeout", &config.DrainTimeout, 30*time.Second); err != nil {
		return nil, err
	}
	dispatcher, err := transport.NewDispatcher(config.Dispatcher)
	if err != nil {
		return nil, err
	}
	for _, e := range config.Dispatcher.Router.Endpoints() {
		if _, err := hostPort(e.Candidate.Endpoint); err != nil {
			return nil, check.Bad("extproc.Config.Dispatcher.Router", "has endpoint %q whose address is not an IP and a port", e.Candidate.Endpoint.ID)
		}
	}
	server := &Server{config: config, router: config.Dispatcher.Router, dispatcher: dispatcher, health: health.NewServer()}
	server.health.SetServingStatus("liveness", healthv1.HealthCheckResponse_SERVING)
	server.SetReady(true)
	return server, nil
}

// SetReady sets what the health services "readiness",
// "envoy.service.ext_proc.v3.ExternalProcessor" and the unnamed one report. A host is
// not ready before it knows its endpoints, or while it is on standby for another.
// Requests are answered anyway.
func (s *Server) SetReady(ready bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthv1.HealthCheckResponse_SERVING
	}
	for _, service := range []string{"", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, state)
	}
}

// Dispatcher returns the server's dispatcher, for hosts that change its hash key.
func (s *Server) Dispatcher() *transport.Dispatcher { return s.dispatcher }

// Register registers the processor and the health services with the host's own gRPC
// server. For mode BUFFERED, that must accept messages of MaxBodyBytes.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	extprocv3.RegisterExternalProcessorServer(g, s)
	healthv1.RegisterHealthServer(g, s.health)
}

// Serve answers on the listener until ctx is done, and then drains: it is no longer
// ready, accepts no connections or streams, and returns when the open streams have
// ended, or after DrainTimeout. Options are added to its own, for example credentials
// for TLS.
func (s *Server) Serve(ctx context.Context, l net.Listener, options ...grpc.ServerOption) error {
	const overhead = 2 << 20 // of a message, besides its body; more than an Envoy may buffer too much
	g := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(min(s.dispatcher.MaxBodyBytes(), math.MaxInt-overhead)) + overhead),
		// Detects proxies that have vanished, and answers the pings of proxies that
		// check for this server, as often as they like.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true}),
	}, options...)...)
	s.Register(g)
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		s.SetReady(false)
		late := time.AfterFunc(s.config.DrainTimeout, g.Stop)
		defer late.Stop()
		g.GracefulStop()
	})
	err := g.Serve(l)
	if stop() {
		g.Stop()
		return err
	}
	<-drained
	if errors.Is(err, grpc.ErrServerStopped) { // ctx was done before
		l.Close()
		return nil
	}
	return err
}

// Process handles one request of the proxy. It is called by gRPC.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) (err error) {
	c := &conversation{server: s, stream: stream}
	defer func() {
		if v := recover(); v != nil { // a panic would end the process
			err = status.Error(codes.Internal, s.panicked("Process", v).Error())
		}
		c.end()
	}()
	for {
		in, err := stream.Recv()
		switch {
		case err == io.EOF:
			return nil // the proxy has ended the stream
		case err != nil:
			return err
		case in.GetObservabilityMode():
			return nil // nobody would receive it
		}
		done, err := c.take(in)
		if done || err != nil {
			return err
		}
	}
}

func (s *Server) panicked(where string, v any) error {
	err := &endpick.PanicError{Stage: "extproc." + where, Value: v, Stack: debug.Stack()}
	s.warn(err)
	return err
}

// warn calls Config.Warn, and ignores a panic of it.
func (s *Server) warn(err error) {
	if s.config.Warn != nil {
		defer func() { _ = recover() }()
		s.config.Warn(err)
	}
}
