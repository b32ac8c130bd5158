package xds

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"unicode/utf8"

	mutation "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lua "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// groupCluster is the cluster of replicas that are called by the transport; nil is plain HTTP. No error tells of a secret.
func groupCluster(name string, t *engines.Transport) (*Resource, error) {
	c := clusterFor(name)
	if t == nil {
		return newResource(name, c)
	}
	changes, more, err := requestChanges(t)
	if err != nil {
		return nil, err
	}
	c.TypedExtensionProtocolOptions = engineProtocol(changes, more)
	if t.TLS != nil {
		if c.TransportSocket, err = transportSocket(t.TLS); err != nil {
			return nil, err
		}
	}
	return newResource(name, c)
}

// requestChanges is what is done to a request in the upstream's own filters, before the codec. Envoy shares a request's headers between its
// attempts, so all of it must come to the same when it is done again.
func requestChanges(t *engines.Transport) (changes []*mutation.HeaderMutation, more []*hcm.HttpFilter, err error) {
	for _, h := range t.Headers {
		if h.Name == "" || !plainText(h.Name) || !plainText(h.Value) {
			return nil, nil, errors.New("one of its headers has a name or value that no header can have")
		}
		changes = append(changes, put(strings.ToLower(h.Name), literal(h.Value)))
	}
	if t.Prefix != "" {
		if !strings.HasPrefix(t.Prefix, "/") || !plainText(t.Prefix) {
			return nil, nil, errors.New("the path of its URL cannot be the beginning of a path")
		}
		more = append(more, filter("envoy.filters.http.lua", &lua.Lua{DefaultSourceCode: &core.DataSource{
			Specifier: &core.DataSource_InlineString{InlineString: fmt.Sprintf(prefixScript, luaText(t.Prefix))},
		}}))
	}
	return changes, more, nil
}

// prefixScript puts the prefix before the path. A script does it because Envoy's filters that change headers refuse :path, and a route, which
// may rewrite it, knows nothing of clusters. What the path was at first stays in a header, so that a second attempt does not put it there
// twice; clients cannot forge that header.
const prefixScript = `function envoy_on_request(handle)
  local headers = handle:headers()
  if headers:get("` + headers.OriginalPath + `") == nil then
    local path = headers:get(":path")
    headers:add("` + headers.OriginalPath + `", path)
    headers:replace(":path", %s .. path)
  end
end
`

// luaText is a text as Lua writes it, every byte as its number.
func luaText(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, `\%03d`, c)
	}
	b.WriteByte('"')
	return b.String()
}

func put(name, value string) *mutation.HeaderMutation {
	return &mutation.HeaderMutation{Action: &mutation.HeaderMutation_Append{Append: setHeader(name, value)}}
}

// literal is a text that Envoy is to take as it is, and not for a format.
func literal(text string) string { return strings.ReplaceAll(text, "%", "%%") }

func plainText(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// transportSocket is TLS that takes only a certificate for the server's own name, signed by who is trusted.
func transportSocket(t *engines.TLS) (*core.TransportSocket, error) {
	up := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{}}
	san := &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: exactly(t.ServerName)}
	if address, err := netip.ParseAddr(t.ServerName); err == nil {
		// Texts are compared, and Envoy writes a certificate's addresses in their shortest form.
		san.SanType, san.Matcher = tlsv3.SubjectAltNameMatcher_IP_ADDRESS, exactly(address.String())
	} else {
		up.Sni = t.ServerName // an address may not stand there
	}
	if !t.Unchecked {
		ca, err := authorities(t.CA)
		if err != nil {
			return nil, err
		}
		up.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: ca, MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{san},
		}}
	}
	if err := up.ValidateAll(); err != nil {
		return nil, errors.New("its name cannot be asked for by TLS")
	}
	packed, err := pack(up)
	if err != nil {
		return nil, err
	}
	return &core.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: packed}}, nil
}

// authorities is who may have signed a certificate. Envoy has no list of its own and reads the system's from its file.
func authorities(ca string) (*core.DataSource, error) {
	if ca != "" {
		return &core.DataSource{Specifier: &core.DataSource_InlineString{InlineString: ca}}, nil
	}
	for _, file := range systemAuthorities() {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			return &core.DataSource{Specifier: &core.DataSource_Filename{Filename: file}}, nil
		}
	}
	return nil, errors.New("this host has no list of trusted certificates (package ca-certificates); name one in ca_file")
}

// systemAuthorities are the places of the system's list: the one that is set, as Go and OpenSSL read it, then those of Debian and Alpine,
// Fedora and RHEL, openSUSE, and older Alpine.
func systemAuthorities() []string {
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		return []string{file}
	}
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
		"/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/ssl/ca-bundle.pem",
		"/etc/ssl/cert.pem",
	}
}
