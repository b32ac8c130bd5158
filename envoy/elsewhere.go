package envoy

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// The defaults of ElsewhereConfig, and the names of its files.
const (
	DefaultDir          = "/etc/sluice-envoy"
	DefaultCertificates = "/etc/sluice-tls"
	BootstrapFile       = "envoy.json"
	CertificateFile     = "certificate.json"
	AuthorityFile       = "authority.json"
)

// ElsewhereConfig is what an Envoy of another host must know before it can ask a gateway for the
// rest.
type ElsewhereConfig struct {
	// Addresses are the host:port at which gateways are found, and ServerName is the name that
	// their certificates have. Both are required.
	Addresses  []string
	ServerName string
	// NodeID names this Envoy in logs. Empty means "sluice". It need not be unique.
	NodeID string
	// Listen is the address on which this Envoy serves clients. Empty: the gateway's listen.
	Listen string
	// AdminSocket is the absolute path of the unix socket of Envoy's admin interface. Empty means
	// that there is no admin interface.
	AdminSocket string
	// Dir is the folder of ElsewhereFiles on the host of the Envoy. Empty means DefaultDir.
	Dir string
	// Certificates is the folder with tls.crt, tls.key and ca.crt there, as in a Secret of
	// cert-manager. Empty means DefaultCertificates. Envoy reads the files again when something in
	// the folder is renamed.
	Certificates string
}

// ElsewhereFiles are the files that such an Envoy starts with.
type ElsewhereFiles struct {
	// Bootstrap is the file for envoy -c.
	Bootstrap []byte
	// Certificate and Authority name the certificates for Envoy's secret discovery. The bootstrap
	// names the two files as CertificateFile and AuthorityFile in Dir.
	Certificate, Authority []byte
}

// BootstrapElsewhere renders the files for an Envoy of another host. Equal configs give equal
// bytes.
func BootstrapElsewhere(c ElsewhereConfig) (ElsewhereFiles, error) {
	dir, certificates := cmp.Or(c.Dir, DefaultDir), cmp.Or(c.Certificates, DefaultCertificates)
	certificate, authority, err := elsewhere.Secrets(filepath.Join(certificates, "tls.crt"),
		filepath.Join(certificates, "tls.key"), filepath.Join(certificates, "ca.crt"))
	if err != nil {
		return ElsewhereFiles{}, fmt.Errorf("envoy bootstrap: %w", err)
	}
	b, err := newBootstrapElsewhere(c, filepath.Join(dir, CertificateFile), filepath.Join(dir, AuthorityFile))
	if err != nil {
		return ElsewhereFiles{}, fmt.Errorf("envoy bootstrap: %w", err)
	}
	var files ElsewhereFiles
	var errs [3]error
	files.Bootstrap, errs[0] = render(b)
	files.Certificate, errs[1] = render(certificate)
	files.Authority, errs[2] = render(authority)
	return files, errors.Join(errs[:]...)
}

// newBootstrapElsewhere builds the message. Its only cluster leads to any gateway; the one that
// answers gives Envoy the other clusters.
func newBootstrapElsewhere(c ElsewhereConfig, certificate, authority string) (*bootstrapv3.Bootstrap, error) {
	gateways, err := elsewhere.Cluster{
		Name: headers.GatewaysCluster, Protocol: headers.ALPNControl, Addresses: c.Addresses, ServerName: c.ServerName,
		Certificate: certificate, Authority: authority,
		HTTP: &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: explicit(elsewhere.HTTP2(new(corev3.Http2ProtocolOptions)))},
	}.Build()
	if err != nil {
		return nil, err
	}
	own := map[string]any{headers.NodeCertificate: certificate, headers.NodeAuthority: authority}
	if c.Listen != "" {
		own[headers.NodeListen] = c.Listen
	}
	metadata, err := structpb.NewStruct(map[string]any{headers.Metadata: own})
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{
		Node:             &corev3.Node{Id: cmp.Or(c.NodeID, "sluice"), Cluster: "sluice", Metadata: metadata},
		StaticResources:  &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{gateways}},
		DynamicResources: dynamicResources(headers.GatewaysCluster),
	}
	if c.AdminSocket != "" {
		b.Admin = &bootstrapv3.Admin{Address: pipe(c.AdminSocket, 0o600), IgnoreGlobalConnLimit: true}
	}
	return b, nil
}
