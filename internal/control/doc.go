// Package control is the TCP listener on which Envoys of other hosts reach the gateway. Package
// internal/gateway runs it. The listener has mutual TLS with certificates that are read again when
// their files change, and one port for all services.
//
// Envoy names the service that it wants as the application protocol of TLS (ALPN, RFC 7301), see
// Services of this package. Read certificates.go (who may connect) and listener.go (which service
// gets the connection).
package control
