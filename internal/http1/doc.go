// Package http1 is HTTP/1.1 for connections on which a stream lasts for minutes: a Transport that
// calls engines and a Server that Envoy forwards managed streams to. internal/relay calls engines
// with it; internal/gateway and internal/relay serve with it.
//
// For as long as the exchange lasts, net/http holds two goroutines and two buffers for each
// connection to a server. For each connection from a client it holds the request and three buffers.
// Here an open stream in chunks holds no buffer but the one that its reader reads into, and an
// event costs one system call on each side.
//
// What is rare is left to net/http. It parses all heads. The Server hands upgrades, HTTP/1.0 and
// malformed requests to a complete net/http server, with every byte that was read. The Transport
// does not have what engines are not asked for: proxies, cookies, redirects, compression, HTTP/2.
//
// With SLUICE_HTTP1=std in the environment both use net/http alone, which tells a fault of this
// package from one of Envoy's.
package http1

import "os"

// useStd says whether the environment asks for net/http in the place of this package.
func useStd() bool { return os.Getenv("SLUICE_HTTP1") == "std" }
