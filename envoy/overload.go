package envoy

import (
	"cmp"
	"time"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	injectedv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/injected_resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Budget is how much an Envoy may use. It depends on the machine, so it is no reason to replace a
// running Envoy: see launchSpec.
type Budget struct {
	// Connections is the greatest number of connections of clients. Envoy closes each further one
	// as soon as it has accepted it. 0 means no limit.
	Connections int
	// Requests is the greatest number of connections to engines, and also that of connections to
	// the relay. Envoy ends itself when it cannot open a socket, so Sluice keeps to it: see
	// extproc.Config.MaxOpen and xds.Config.MaxRelay. 0 means no limit.
	Requests int
	// Memory is the size of the heap in bytes that Envoy must not exceed. Envoy refuses requests
	// before the heap has that size. 0 means no limit.
	Memory int64
}

// FileBudget returns the connections and requests for which a limit of open files suffices. A
// connection of a client takes one file, and so does each request, at an engine or at the relay:
// each of the three gets a third. An eighth, or 128, is left for Envoy itself and for connections
// to engines that are kept for the next request.
func FileBudget(files int) Budget {
	const own = 128
	each := max((files-max(own, files/8))/3, 1)
	return Budget{Connections: each, Requests: each}
}

const (
	// unlimitedConnections is a limit that never applies. Envoy logs a warning without a limit.
	unlimitedConnections = 1 << 20
	// overloadInterval is how often Envoy looks at its resources.
	overloadInterval = 250 * time.Millisecond
	// shortestIdle is the idle timeout of connections when nearly all connections are in use.
	shortestIdle = 5 * time.Second
	// shortestHandshake is the same for a connection whose TLS handshake is not done.
	shortestHandshake = time.Second
	// trackedBuffer is the power of two from which on Envoy counts the bytes that a stream buffers.
	// Only such streams are reset when memory ends.
	trackedBuffer = 20
)

// The names of the monitors that triggers refer to.
const (
	connectionsMonitor = "envoy.resource_monitors.global_downstream_max_connections"
	pressureMonitor    = "envoy.resource_monitors.injected_resource"
	heapMonitor        = "envoy.resource_monitors.fixed_heap"
)

// The shares of the connections at which idle timeouts begin to shrink, and at which they are
// shortest. Sluice writes the share into the pressure file.
const (
	shrinkIdleFrom = 0.5
	// ShortestIdleFrom is the pressure at which idle connections have their shortest time.
	ShortestIdleFrom = 0.8
)

// overloadManager returns what Envoy does when a resource becomes scarce.
//
// The number of connections cannot trigger actions in Envoy, only refuse connections. So Sluice
// measures it and writes the share that is in use into a file, which Envoy watches.
func overloadManager(b Budget, pressureFile string) (*overloadv3.OverloadManager, error) {
	connections := cmp.Or(b.Connections, unlimitedConnections)
	m := new(overloadBuilder)
	m.monitor(connectionsMonitor, &connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: int64(connections)})
	var shrink []*overloadv3.Trigger
	if pressureFile != "" {
		m.monitor(pressureMonitor, &injectedv3.InjectedResourceConfig{Filename: pressureFile})
		shrink = append(shrink, scaled(pressureMonitor, shrinkIdleFrom, ShortestIdleFrom))
	}
	if b.Memory > 0 {
		m.monitor(heapMonitor, &heapv3.FixedHeapConfig{MaxHeapSizeBytes: uint64(b.Memory)})
		shrink = append(shrink, scaled(heapMonitor, 0.85, 0.95))
		m.action("envoy.overload_actions.shrink_heap", nil, threshold(heapMonitor, 0.85))
		m.action("envoy.overload_actions.reset_high_memory_stream", nil, scaled(heapMonitor, 0.92, 0.98))
		m.action("envoy.overload_actions.stop_accepting_requests", nil, threshold(heapMonitor, 0.95))
		m.action("envoy.overload_actions.stop_accepting_connections", nil, threshold(heapMonitor, 0.98))
		m.manager.BufferFactoryConfig = &overloadv3.BufferFactoryConfig{MinimumAccountToTrackPowerOfTwo: trackedBuffer}
	}
	if len(shrink) > 0 {
		m.action("envoy.overload_actions.reduce_timeouts", shorterTimeouts(), shrink...)
	}
	m.manager.RefreshInterval = durationpb.New(overloadInterval)
	return &m.manager, m.err
}

// overloadBuilder collects monitors and actions. err is the first error.
type overloadBuilder struct {
	manager overloadv3.OverloadManager
	err     error
}

// monitor adds a monitor of a resource.
func (b *overloadBuilder) monitor(name string, config proto.Message) {
	b.manager.ResourceMonitors = append(b.manager.ResourceMonitors, &overloadv3.ResourceMonitor{
		Name: name, ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: b.pack(config)},
	})
}

// action adds an action. A nil config means that the action has none.
func (b *overloadBuilder) action(name string, config proto.Message, triggers ...*overloadv3.Trigger) {
	action := &overloadv3.OverloadAction{Name: name, Triggers: triggers}
	if config != nil {
		action.TypedConfig = b.pack(config)
	}
	b.manager.Actions = append(b.manager.Actions, action)
}

func (b *overloadBuilder) pack(m proto.Message) *anypb.Any {
	packed, err := anypb.New(m)
	if err != nil && b.err == nil {
		b.err = err
	}
	return packed
}

// shorterTimeouts lists the timeouts that shrink.
func shorterTimeouts() *overloadv3.ScaleTimersOverloadActionConfig {
	shortest := func(timer overloadv3.ScaleTimersOverloadActionConfig_TimerType, d time.Duration) *overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer {
		return &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer{
			Timer: timer, OverloadAdjust: &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer_MinTimeout{MinTimeout: durationpb.New(d)},
		}
	}
	return &overloadv3.ScaleTimersOverloadActionConfig{TimerScaleFactors: []*overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer{
		shortest(overloadv3.ScaleTimersOverloadActionConfig_HTTP_DOWNSTREAM_CONNECTION_IDLE, shortestIdle),
		shortest(overloadv3.ScaleTimersOverloadActionConfig_TRANSPORT_SOCKET_CONNECT, shortestHandshake),
	}}
}

// threshold triggers an action fully when the pressure of a monitor exceeds a share.
func threshold(monitor string, share float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{Name: monitor, TriggerOneof: &overloadv3.Trigger_Threshold{
		Threshold: &overloadv3.ThresholdTrigger{Value: share},
	}}
}

// scaled triggers an action by degrees between two shares.
func scaled(monitor string, from, to float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{Name: monitor, TriggerOneof: &overloadv3.Trigger_Scaled{
		Scaled: &overloadv3.ScaledTrigger{ScalingThreshold: from, SaturationThreshold: to},
	}}
}
