package gateway

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/certificates"
)

// checkTakeOver returns an error if this process could not start in the place of its predecessor,
// which still manages everything then: a restart that fails here changes nothing.
func (g *Gateway) checkTakeOver(ctx context.Context, predecessor *helloMessage) error {
	c := g.options.Config
	if err := g.checkFound(c); err != nil {
		return err
	}
	if c.Control.Listen != "" {
		if _, err := certificates.Read(controlFiles(c.Control).Files); err != nil {
			return fmt.Errorf("control: %w", err)
		}
	}
	if g.options.Envoy != "" && predecessor.PID != os.Getpid() { // a Gateway that goes back needs no new Envoy
		if _, err := envoy.Version(ctx, g.options.Envoy); err != nil {
			return fmt.Errorf("envoy: %w", err)
		}
	}
	return g.checkAddresses(ctx, predecessor)
}

// checkAddresses returns an error if this process cannot listen at an address of the configuration.
// It leaves out what the predecessor passes on or frees.
func (g *Gateway) checkAddresses(ctx context.Context, predecessor *helloMessage) error {
	c := g.options.Config
	wanted := [][2]string{{"admin", c.Admin}, {"health", c.Health}, {"control.listen", c.Control.Listen}}
	if predecessor.Frees != nil {
		wanted = append(wanted, [2]string{"control.nodes", c.Control.Nodes}, [2]string{"peers", c.Peers})
	}
	for _, w := range wanted {
		field, address := w[0], w[1]
		if address == "" || slices.Contains(predecessor.Listeners, address) || predecessor.frees(address) {
			continue
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return explainListen(field, err)
		}
		if err := l.Close(); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
	}
	return nil
}

// frees lists the addresses at which this process listens until it pauses.
func (g *Gateway) frees() []string {
	c := g.options.Config
	return slices.DeleteFunc([]string{c.Control.Nodes, c.Peers}, func(address string) bool { return address == "" })
}

// frees reports whether the predecessor may listen at the port of an address until it sends Take.
func (m *helloMessage) frees(address string) bool {
	port := portOf(address)
	return slices.ContainsFunc(m.Frees, func(freed string) bool { return portOf(freed) == port })
}

// portOf returns the port of a host:port, or "" if there is none.
func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return port
}
