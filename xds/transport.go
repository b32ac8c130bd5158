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

// newGroupCluster returns the cluster of replicas that share the transport settings t. nil means
// plain HTTP. elsewhere means that Envoys of other hosts have the cluster, too. The errors contain
// no secrets.
func newGroupCluster(name string, t *engines.Transport, elsewhere bool) (*Resource, error) {
	c := newCluster(name)
	if t == nil {
		return newResource(name, c)
	}
	changes, more, err := requestChanges(t)
	if err != nil {
		return nil, err
	}
	c.TypedExtensionProtocolOptions = engineProtocol(changes, more)
	if t.TLS != nil {
		if c.TransportSocket, err = transportSocket(t.TLS, elsewhere); err != nil {
			return nil, err
		}
	}
	return newResource(name, c)
}

// requestChanges returns what the upstream filters do to a request, before the codec. Envoy shares
// the headers of a request between its attempts, so the changes must give the same result when they
// are applied again.
func requestChanges(t *engines.Transport) (changes []*mutation.HeaderMutation, more []*hcm.HttpFilter, err error) {
	for _, h := range t.Headers {
		if h.Name == "" || !isHeaderText(h.Name) || !isHeaderText(h.Value) {
			return nil, nil, errors.New("one of its headers has a name or value that no header can have")
		}
		changes = append(changes, setRequestHeader(strings.ToLower(h.Name), escapeFormat(h.Value)))
	}
	for _, part := range []string{t.Prefix, t.API} {
		if part != "" && (part[0] != '/' || !isHeaderText(part)) {
			return nil, nil, errors.New("the path of its URL or of its API cannot be a part of a path")
		}
	}
	if t.Prefix != "" || t.API != "" {
		more = append(more, httpFilter("envoy.filters.http.lua", &lua.Lua{DefaultSourceCode: inline(pathScript(t))}))
	}
	return changes, more, nil
}

// pathScript makes of a path what engines.Transport.Path makes of it. It is a script because
// Envoy's filters that change headers refuse :path, and a route, which may rewrite the path, does
// not depend on the cluster. The script stores the original path in a header, so that a second
// attempt does not change the path again. Clients cannot forge that header.
func pathScript(t *engines.Transport) string {
	api := ""
	if t.API != "" {
		api = `    if path:sub(1, 4) == "/v1/" then path = ` + luaText(strings.TrimSuffix(t.API, "/")) + ` .. path:sub(4) end
`
	}
	return `function envoy_on_request(handle)
  local headers = handle:headers()
  if headers:get("` + headers.OriginalPath + `") == nil then
    local path = headers:get(":path")
    headers:add("` + headers.OriginalPath + `", path)
` + api + `    headers:replace(":path", ` + luaText(t.Prefix) + ` .. path)
  end
end
`
}

// luaText returns a Lua string literal with every byte as its number.
func luaText(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, `\%03d`, c)
	}
	b.WriteByte('"')
	return b.String()
}

func setRequestHeader(name, value string) *mutation.HeaderMutation {
	return &mutation.HeaderMutation{Action: &mutation.HeaderMutation_Append{Append: setHeader(name, value)}}
}

// escapeFormat protects a text in which Envoy would otherwise interpret percent signs.
func escapeFormat(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// isHeaderText reports whether a header can carry the text.
func isHeaderText(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// transportSocket returns TLS that accepts only a certificate for the server's own name, signed by
// a trusted authority.
func transportSocket(t *engines.TLS, elsewhere bool) (*core.TransportSocket, error) {
	up := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{}}
	san := &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: exactly(t.ServerName)}
	if address, err := netip.ParseAddr(t.ServerName); err == nil {
		// Envoy compares texts and writes the addresses of a certificate in their shortest form.
		san.SanType, san.Matcher = tlsv3.SubjectAltNameMatcher_IP_ADDRESS, exactly(address.String())
	} else {
		// SNI cannot hold an address.
		up.Sni = t.ServerName
	}
	if !t.Unchecked {
		ca, err := trustedAuthorities(t.CA, elsewhere)
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

// trustedAuthorities returns the certificates of the authorities to trust. Envoy has no list of its
// own, so without a configured list it reads the file of the system. Envoys of other hosts get its
// content, because an Envoy refuses a cluster whose file does not exist there.
func trustedAuthorities(ca string, elsewhere bool) (*core.DataSource, error) {
	if ca != "" {
		return inline(ca), nil
	}
	for _, file := range systemAuthorities() {
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
			continue
		}
		if !elsewhere {
			return &core.DataSource{Specifier: &core.DataSource_Filename{Filename: file}}, nil
		}
		if content, err := os.ReadFile(file); err == nil {
			return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: content}}, nil
		}
	}
	return nil, errors.New("this host has no list of trusted certificates (package ca-certificates); name one in ca_file")
}

// systemAuthorities are the paths of the system's list. They are $SSL_CERT_FILE, as Go and OpenSSL
// read it, or the files of Debian and Alpine, Fedora and RHEL, openSUSE, and older versions of
// Alpine.
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
