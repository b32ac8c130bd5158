package elsewhere

import (
	"path/filepath"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The names of the secrets in the files of SDS. Each file has one, as Envoy requires.
const (
	certificateName = "sluice_certificate"
	authorityName   = "sluice_authority"
)

// secret refers to the secret in a file of SDS. Envoy watches the certificates that such a file
// names; those in a bootstrap it reads once.
func secret(name, file string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
			Path: file,
		}},
	}}
}

// Secrets returns what the two files of SDS contain, as answers of a discovery service. One has the
// certificate of an Envoy with its key, the other the authorities that the Envoy trusts, all as
// paths on the host of the Envoy. Envoy reads them again when something is renamed in their
// directories, as Kubernetes does for a mounted Secret.
func Secrets(cert, key, ca string) (certificate, authority *discoveryv3.DiscoveryResponse, err error) {
	certificate, err = answer(&tlsv3.Secret{Name: certificateName, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: file(cert), PrivateKey: file(key), WatchedDirectory: directory(cert),
	}}})
	if err != nil {
		return nil, nil, err
	}
	authority, err = answer(&tlsv3.Secret{Name: authorityName, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: file(ca), WatchedDirectory: directory(ca)},
	}})
	return certificate, authority, err
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func directory(path string) *corev3.WatchedDirectory {
	return &corev3.WatchedDirectory{Path: filepath.Dir(path)}
}

func answer(s *tlsv3.Secret) (*discoveryv3.DiscoveryResponse, error) {
	packed, err := anypb.New(s)
	return &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{packed}}, err
}
