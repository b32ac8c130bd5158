package gateway

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sluice-gateway/sluice/internal/nonblock"
	"github.com/sluice-gateway/sluice/internal/process"
)

// envoyCredentials are the credentials of a gRPC server on a unix socket. They encrypt nothing.
// They tell the handlers which process is at the other end.
type envoyCredentials struct {
	credentials.TransportCredentials
}

func (c envoyCredentials) ServerHandshake(socket net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return socket, envoyProcess{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, nonblock.PeerPID(socket)}, nil
}

func (c envoyCredentials) Clone() credentials.TransportCredentials { return c }

// envoyProcess is the process of the Envoy at the other end of a connection. pid 0: not known.
type envoyProcess struct {
	credentials.CommonAuthInfo
	pid int
}

// AuthType implements credentials.AuthInfo.
func (envoyProcess) AuthType() string { return "insecure" }

// envoyOf returns a function that reports whether the Envoy runs that a gRPC request came through.
// nil: not known.
func (g *Gateway) envoyOf(ctx context.Context) (alive func() bool) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	e, _ := p.AuthInfo.(envoyProcess)
	if e.pid == 0 {
		return nil
	}
	return func() bool { return process.Runs(e.pid) }
}
