package gateway

import (
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// Bootstrap returns the bootstrap configuration for an Envoy that somebody else runs beside this gateway.
func Bootstrap(c *config.Config) ([]byte, error) {
	dir, err := process.Open(c.StateDir, nil)
	if err != nil {
		return nil, err
	}
	return envoy.Bootstrap(bootstrap(dir))
}

// bootstrap names the sockets of a state directory.
func bootstrap(dir *process.Dir) envoy.BootstrapConfig {
	return envoy.BootstrapConfig{
		ControlSocket: dir.Socket("control.sock"),
		APISocket:     dir.Socket("api.sock"),
		AdminSocket:   dir.Socket("envoy.sock"),
	}
}

// relaySocket and grpcSocket are where Envoy brings managed streams. It learns them by xDS, so that an Envoy of before an upgrade does too.
func relaySocket(dir *process.Dir) string { return dir.Socket("relay.sock") }
func grpcSocket(dir *process.Dir) string  { return dir.Socket("grpc.sock") }
