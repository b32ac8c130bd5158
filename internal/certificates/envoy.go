package certificates

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"strings"
)

// minRSABits is the size of the smallest RSA key that Envoy accepts.
const minRSABits = 2048

// mustStaple is the extension of a certificate that asks for an OCSP response in each handshake
// (RFC 7633).
var mustStaple = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}

// checkForEnvoy returns why Envoy would refuse the content of the files. The error names a file.
func checkForEnvoy(f Files, c *Content) error {
	if reason := checkLeaf(c.Pair.Leaf); reason != "" {
		return fmt.Errorf("%s %s", f.Cert, reason)
	}
	for _, file := range []struct{ path, text string }{{f.Cert, c.Cert}, {f.CA, c.CA}} {
		if !isWhole(file.text) {
			return fmt.Errorf("%s has a PEM block that is cut short or damaged, and Envoy refuses the whole file: replace or remove it", file.path)
		}
	}
	return nil
}

// checkLeaf returns why Envoy cannot serve with a certificate; "": it can.
func checkLeaf(leaf *x509.Certificate) string {
	for i := range leaf.Extensions {
		if leaf.Extensions[i].Id.Equal(mustStaple) {
			return "asks for OCSP stapling (must-staple), which Sluice does not do: make one without it"
		}
	}
	switch key := leaf.PublicKey.(type) {
	case ed25519.PublicKey:
		return ""
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return "has an ECDSA key of the curve P-224, which Envoy does not accept: make one of P-256, P-384 or P-521"
		}
		return ""
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits {
			return fmt.Sprintf("has an RSA key of %d bits, and Envoy accepts %d or more: make a longer one", bits, minRSABits)
		}
		return ""
	}
	return fmt.Sprintf("has a key of the kind %s, which Envoy does not accept: make one of the kind ECDSA, Ed25519 or RSA", leaf.PublicKeyAlgorithm)
}

// isWhole reports whether every block of a PEM text can be read. Envoy refuses a text with one that
// cannot be, while Go leaves it out.
func isWhole(text string) bool {
	begun, read := strings.Count(text, "-----BEGIN "), 0
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		read++
		if block.Type != "CERTIFICATE" && block.Type != "X509 CERTIFICATE" { // the second is the old name
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil || len(block.Headers) > 0 {
			return false
		}
	}
	return read == begun
}
