package elsewhere

import (
	"context"

	"google.golang.org/grpc/peer"
)

// Peer returns the address that an Envoy of another host calls from, and the address of this
// gateway that it has called. It returns false for the Envoy of this host, which calls over a unix
// socket.
func Peer(ctx context.Context) (envoy, gateway string, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil || p.Addr.Network() != "tcp" {
		return "", "", false
	}
	if p.LocalAddr != nil {
		gateway = p.LocalAddr.String()
	}
	return p.Addr.String(), gateway, true
}
