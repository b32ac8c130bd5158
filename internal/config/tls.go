package config

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"os"

	"github.com/sluice-gateway/sluice/internal/certificates"
)

// TLS has the certificate with which Envoy serves clients. Sluice reads the files again when they
// change.
type TLS struct {
	// Cert is the path of the certificate of listen, with its chain, in PEM. A relative path counts
	// from the folder of the file.
	Cert string `yaml:"cert" required:"true"`
	// Key is the path of the key of cert, in PEM.
	Key string `yaml:"key" required:"true"`
	// ClientCA is the path of the certificates of authorities, in PEM. A client then needs a
	// certificate that one of them has signed, besides what auth asks for. Default: empty, clients
	// need no certificate.
	ClientCA string `yaml:"client_ca"`
}

// Files returns the paths of the files.
func (t *TLS) Files() certificates.Files {
	return certificates.Files{Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA}
}

// minRSABits is the size of the smallest RSA key that Envoy accepts.
const minRSABits = 2048

// checkTLS reads the certificates of listen once, so that a wrong one is a fault of the file.
func (k *checker) checkTLS() {
	t, at := k.config.TLS, path{"tls"}
	if t == nil || !k.valid(at) {
		return
	}
	for _, file := range []named{{t.Cert, at.field("cert")}, {t.Key, at.field("key")}} {
		if k.isSet(file.at) && k.valid(file.at) && file.name == "" {
			k.faultf(file.at, "is empty: set it to the path of a PEM file")
		}
	}
	if t.Cert == "" || t.Key == "" {
		return
	}
	readable := k.checkPair(at, &t.Cert, &t.Key)
	if t.ClientCA != "" {
		t.ClientCA = k.absolutePath(t.ClientCA)
		if _, err := readCertificates(t.ClientCA); err != nil {
			k.faultf(at.field("client_ca"), "cannot be read: %v", err)
			readable = false
		}
	}
	if !readable {
		return
	}
	content, err := certificates.Read(t.Files())
	if err != nil {
		k.faultf(at.field("cert"), "cannot be used with its key: %v", err)
		return
	}
	k.checkKeyKind(at.field("cert"), content.Pair.Leaf)
	if c := k.config.Control; c.Listen != "" && c.ClientCA == "" {
		k.faultf(at, "gives the key to every program of this machine that connects to control.listen: set control.client_ca")
	}
}

// checkPair makes the paths of the fields cert and key at this place absolute. It reports each file
// that does not exist, and returns whether both do.
func (k *checker) checkPair(at path, cert, key *string) (exist bool) {
	*cert, *key = k.absolutePath(*cert), k.absolutePath(*key)
	exist = true
	for _, file := range []named{{*cert, at.field("cert")}, {*key, at.field("key")}} {
		if _, err := os.Stat(file.name); err != nil {
			k.faultf(file.at, "cannot be read: %v", err)
			exist = false
		}
	}
	return exist
}

// checkKeyKind refuses a certificate whose key Envoy cannot use.
func (k *checker) checkKeyKind(at path, leaf *x509.Certificate) {
	switch key := leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits {
			k.faultf(at, "has an RSA key of %d bits, and Envoy accepts %d or more: make a longer one", bits, minRSABits)
		}
	default:
		k.faultf(at, "has a key of the kind %s, which Envoy does not accept: make one of the kind ECDSA or RSA", leaf.PublicKeyAlgorithm)
	}
}
