// Package control is the TCP listener on which Envoys of other hosts reach the gateway: mutual TLS
// with certificates that are read again when their files change, and one port for all services.
// Package internal/gateway runs it.
//
// Envoy names the service that it wants as the application protocol of TLS (ALPN, RFC 7301), see
// Services of this package. Read certificates.go (who may connect) and listener.go (which service
// gets the connection).
package control
