package envoy

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkmodulesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/dynamic_modules/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/envoy/filter"
)

// Inlets is where the gateway connects to the workers of Envoy, so that its answers reach them
// without a thread between (envoy/filter/src/inlet.c). It is in the bootstrap, because a listener
// that changes would cut its connections.
type Inlets struct {
	// Socket is the path of the listener's unix socket, which only its owner may open. Gateway is
	// that of the socket where the filter asks the gateway. The rules of ControlSocket apply to
	// both.
	Socket, Gateway string
	// filter is the file with the filter. Empty: Envoy does without the filter and the listener.
	filter string
}

// listeners returns the listener as a list, which is empty without a filter.
func (i Inlets) listeners() ([]*listenerv3.Listener, error) {
	if i.filter == "" || i.Socket == "" {
		return nil, nil
	}
	gateway, err := anypb.New(wrapperspb.String(i.Gateway))
	if err != nil {
		return nil, err
	}
	inlet, err := anypb.New(&networkmodulesv3.DynamicModuleNetworkFilter{
		DynamicModuleConfig: filter.Module(i.filter), FilterName: filter.Name, FilterConfig: gateway, TerminalFilter: true,
	})
	if err != nil {
		return nil, err
	}
	return []*listenerv3.Listener{{
		Name:                  "sluice.inlets",
		Address:               pipe(i.Socket, 0o600),
		IgnoreGlobalConnLimit: true,
		BypassOverloadManager: true,
		ConnectionBalanceConfig: &listenerv3.Listener_ConnectionBalanceConfig{
			BalanceType: &listenerv3.Listener_ConnectionBalanceConfig_ExactBalance_{ExactBalance: &listenerv3.Listener_ConnectionBalanceConfig_ExactBalance{}},
		},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "sluice.inlet", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: inlet},
		}}}},
	}}, nil
}
