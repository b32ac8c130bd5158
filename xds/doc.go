// Package xds turns the fleet into Envoy's configuration and serves it. Package internal/gateway
// uses Resources to build the configuration and Server to send it to Envoy.
//
// Rebuild is a pure function: equal Configs and fleets give equal bytes. Server speaks the
// incremental (delta) form of Envoy's aggregated discovery service (ADS). It knows for each
// resource whether Envoy has acknowledged it.
//
//	one listener (LDS)     The HTTP connection manager, its filters ext_proc, ext_authz and
//	                       router, the replies of Envoy itself, and the access log. A changed
//	                       listener drains and cuts its streams, so the listener depends on
//	                       nothing that can be reloaded.
//	secrets (SDS)          The certificates of the listener, if it has any. They change without
//	                       the listener.
//	one route table (RDS)  A request reaches an engine only with a header that ext_proc sets.
//	                       Without the header, the only route leads to a cluster that does not
//	                       exist, which makes the answer a 503.
//	a cluster per model    override_host follows the list of replicas that ext_proc writes into
//	                       a header. The cluster does not depend on the replicas, because Envoy
//	                       rebuilds and warms a cluster that changed. Replicas with transport
//	                       settings of their own have further clusters, one for each group.
//	two own clusters       They lead to the streams that Sluice itself carries, if they are
//	                       configured (Config.RelaySocket, Config.GRPCSocket).
//	endpoints per cluster  The replicas that are ready. Scaling changes nothing else.
package xds
