// Package xds turns the fleet into Envoy's configuration and serves it.
//
// Build is pure: the same Config and the same fleet always give the same bytes. Server speaks the incremental (delta) form of
// Envoy's aggregated discovery service and knows, resource by resource, what Envoy has taken.
//
//	one listener (LDS)    the HTTP connection manager, its filters ext_proc, ext_authz and router, the answers that Envoy gives by
//	                      itself, the access log. A changed listener drains and cuts its streams, so nothing in it may
//	                      depend on what can be reloaded.
//	one route table (RDS) a request may only go to an engine with a header that ext_proc sets. Without it the only route
//	                      left leads to a cluster that exists nowhere, which is a 503.
//	a cluster per model   override_host follows the list of replicas that ext_proc writes into a header. The cluster's bytes never
//	                      depend on the replicas, because Envoy rebuilds and warms a cluster that changed.
//	two clusters of ours  to the streams that Sluice carries itself, where they are asked for (Config.RelaySocket, Config.GRPCSocket).
//	endpoints per model   the replicas that are ready. All that scaling changes is here.
package xds
