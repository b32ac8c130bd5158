package xds

import (
	"fmt"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	ratelimitconfig "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	ratelimitcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	httpinspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	listenerstate "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/set_filter_state/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ratelimit/v3"
	networkstate "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// The filters of new connections. Their configuration comes by ECDS, because a change of the
// listener itself would drain it.
const (
	// firstRequestName is the listener filter that lets a connection in when it has sent the first
	// line of a request. Until then the connection has a short timeout: the listener's.
	firstRequestName = "sluice_first_request"
	// sourceName is the network filter that asks Sluice whether the source of a connection may have
	// one more.
	sourceName = "sluice_source"
)

// askTimeout bounds Sluice's answer about a connection. Envoy lets the connection in after that.
const askTimeout = time.Second

// firstRequestFilter refers to the listener filter.
func firstRequestFilter() *listener.ListenerFilter {
	return &listener.ListenerFilter{Name: firstRequestName, ConfigType: &listener.ListenerFilter_ConfigDiscovery{
		ConfigDiscovery: discovered(&httpinspector.HttpInspector{}, &listenerstate.Config{}),
	}}
}

// sourceFilter refers to the network filter.
func sourceFilter() *listener.Filter {
	return &listener.Filter{Name: sourceName, ConfigType: &listener.Filter_ConfigDiscovery{
		ConfigDiscovery: discovered(&ratelimit.RateLimit{}, &networkstate.Config{}),
	}}
}

// discovered says that a filter comes by ECDS and has one of these types.
func discovered(types ...proto.Message) *core.ExtensionConfigSource {
	source := &core.ExtensionConfigSource{ConfigSource: fromADS()}
	for _, t := range types {
		source.TypeUrls = append(source.TypeUrls, "type.googleapis.com/"+string(t.ProtoReflect().Descriptor().FullName()))
	}
	return source
}

// connectionFilters returns the configuration of both filters, by name. A filter that sets no state
// does nothing.
func connectionFilters(c Config) (map[string]*Resource, error) {
	var first, source validatedMessage = &httpinspector.HttpInspector{}, &networkstate.Config{}
	if c.NearLimit {
		first = &listenerstate.Config{}
	}
	if c.AskSource {
		source = askSource()
	}
	all := map[string]*Resource{}
	for name, m := range map[string]validatedMessage{firstRequestName: first, sourceName: source} {
		if err := m.ValidateAll(); err != nil {
			return nil, fmt.Errorf("filter %s: %w", name, err)
		}
		r, err := newResource(name, extension(name, m))
		if err != nil {
			return nil, fmt.Errorf("filter %s: %w", name, err)
		}
		all[name] = r
	}
	return all, nil
}

// askSource asks Sluice about a connection in the form of a rate limit. It fails open.
func askSource() *ratelimit.RateLimit {
	return &ratelimit.RateLimit{
		StatPrefix: "sluice_source",
		Domain:     "sluice",
		Descriptors: []*ratelimitcommon.RateLimitDescriptor{{Entries: []*ratelimitcommon.RateLimitDescriptor_Entry{{
			Key: headers.SourceKey, Value: "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
		}}}},
		Timeout: durationpb.New(askTimeout),
		RateLimitService: &ratelimitconfig.RateLimitServiceConfig{
			GrpcService: controlService(0), TransportApiVersion: core.ApiVersion_V3,
		},
	}
}
