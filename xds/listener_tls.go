package xds

import (
	"crypto/rand"
	"errors"
	"fmt"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TLS has the certificate of the listener, as texts in PEM. The zero value means that clients
// connect without TLS.
//
// Envoy gets the texts by SDS. So a replaced certificate changes only a secret and not the
// listener: new connections get the new certificate, and existing connections stay.
type TLS struct {
	// Certificate is the chain of the listener's certificate, Key its private key.
	Certificate, Key string
	// ClientCA are the authorities that sign the certificates of clients. Empty: a client needs no
	// certificate.
	ClientCA string
}

// The names of the secrets.
const (
	listenSecret = "sluice_listen"
	clientSecret = "sluice_clients"
)

// check refuses a TLS with half a certificate.
func (t TLS) check() error {
	if (t.Certificate == "") != (t.Key == "") || t.Certificate == "" && t.ClientCA != "" {
		return errors.New("tls needs a certificate and its key")
	}
	return nil
}

// secrets returns the certificate and the authorities by the names of their secrets.
func (t TLS) secrets() (map[string]*Resource, error) {
	all := map[string]*Resource{}
	if t.Certificate == "" {
		return all, nil
	}
	messages := []*tlsv3.Secret{{Name: listenSecret, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(t.Certificate), PrivateKey: inline(t.Key),
	}}}}
	if t.ClientCA != "" {
		messages = append(messages, &tlsv3.Secret{Name: clientSecret, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(t.ClientCA)},
		}})
	}
	for _, m := range messages {
		r, err := newResource(m.Name, m)
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", m.Name, err)
		}
		all[m.Name] = r
	}
	return all, nil
}

// distinct returns a secret with the same meaning and a new text. Envoy compares a secret with the
// last one that it was sent, also with one that it has refused, and acknowledges an equal one
// without a look. PEM ignores a line before its first block.
func distinct(r *Resource) (*anypb.Any, error) {
	secret := proto.Clone(r.Message).(*tlsv3.Secret)
	text := secret.GetValidationContext().GetTrustedCa()
	if secret.GetTlsCertificate() != nil {
		text = secret.GetTlsCertificate().GetCertificateChain()
	}
	text.Specifier = inline("# " + rand.Text() + "\n" + text.GetInlineString()).Specifier
	return pack(secret)
}

// retryRefused has the refused secrets sent again after Envoy has acknowledged another one. Envoy
// checks all secrets of a listener together, so it may have refused them because of the other one.
func (sub *subscription) retryRefused() {
	for name := range sub.refused {
		delete(sub.sent, name)
		sub.toCheck[name] = struct{}{}
	}
}

// hasSecrets reports whether Envoy has every secret of the listener, in any version.
func (st *stream) hasSecrets() bool {
	sub := st.subscriptions[secretKind]
	for name := range st.server.currentResources().Secrets {
		if sub == nil || sub.acked[name] == nil {
			return false
		}
	}
	return true
}

// certificate returns the chain of the listener's certificate that Envoy has acknowledged; "" if
// there is none or its content is unknown.
func (st *stream) certificate() string {
	sub := st.subscriptions[secretKind]
	if sub == nil || sub.acked[listenSecret] == nil {
		return ""
	}
	secret, _ := sub.acked[listenSecret].Message.(*tlsv3.Secret)
	return secret.GetTlsCertificate().GetCertificateChain().GetInlineString()
}

func inline(text string) *core.DataSource {
	return &core.DataSource{Specifier: &core.DataSource_InlineString{InlineString: text}}
}

// socket returns the transport socket of the listener. It refers to the secrets by name, so it
// depends only on which secrets there are. It is nil without TLS.
func (t TLS) socket() *core.TransportSocket {
	if t.Certificate == "" {
		return nil
	}
	common := &tlsv3.CommonTlsContext{
		TlsParams:                      &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2},
		AlpnProtocols:                  []string{"h2", "http/1.1"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: listenSecret, SdsConfig: fromADS()}},
	}
	down := &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
	if t.ClientCA != "" {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: clientSecret, SdsConfig: fromADS()},
		}
		down.RequireClientCertificate = wrapperspb.Bool(true)
		// Every connection proves its identity by the authorities of now.
		down.SessionTicketKeysType = &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true}
		down.DisableStatefulSessionResumption = true
	}
	return &core.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: mustPack(down)}}
}

// handshakeTimeout returns how long the handshake of a connection may take; nil without TLS.
func (c Config) handshakeTimeout() *durationpb.Duration {
	if c.TLS.Certificate == "" {
		return nil
	}
	return durationpb.New(c.FirstRequest)
}
