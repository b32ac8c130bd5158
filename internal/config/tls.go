package config

import (
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
	return certificates.Files{Cert: t.Cert, Key: t.Key, CA: t.ClientCA, ForEnvoy: true}
}

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
	pair := t.Files()
	pair.CA = ""
	if _, err := certificates.Read(pair); err != nil {
		k.faultf(at.field("cert"), "cannot be used: %v", err)
		return
	}
	if _, err := certificates.Read(t.Files()); err != nil {
		k.faultf(at.field("client_ca"), "cannot be used: %v", err)
	}
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
