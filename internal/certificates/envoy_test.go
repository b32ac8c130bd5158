package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// writeSelfSigned writes a certificate of the key with further extensions over the files.
func writeSelfSigned(t *testing.T, f Files, key crypto.Signer, more ...pkix.Extension) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtraExtensions: more}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, f.Cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeText(t, f.Key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

func writeText(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func ecdsaKey(t *testing.T, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t *testing.T, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Files that Envoy would refuse change nothing: those of before stay, and the fault says why. The
// lists are what Envoy 1.40 accepts and refuses.
func TestO12_WhatEnvoyWouldRefuseChangesNothing(t *testing.T) {
	t.Parallel()
	good, _ := files(t, testutil.NewAuthority(t, "authority"))
	whole := readText(t, good.CA)
	cut := whole[:len(whole)/2]
	damaged := "-----BEGIN CERTIFICATE-----\nMIIBAAAA\n-----END CERTIFICATE-----\n"
	staple := pkix.Extension{Id: mustStaple, Value: []byte{0x30, 3, 2, 1, 5}}
	for name, test := range map[string]struct {
		replace func(Files)
		want    string
	}{
		"P-384":         {func(f Files) { writeSelfSigned(t, f, ecdsaKey(t, elliptic.P384())) }, ""},
		"2048 bits":     {func(f Files) { writeSelfSigned(t, f, rsaKey(t, 2048)) }, ""},
		"Ed25519":       {func(f Files) { writeSelfSigned(t, f, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))) }, ""},
		"P-224":         {func(f Files) { writeSelfSigned(t, f, ecdsaKey(t, elliptic.P224())) }, "server.crt has an ECDSA key of the curve P-224"},
		"2040 bits":     {func(f Files) { writeSelfSigned(t, f, rsaKey(t, 2040)) }, "server.crt has an RSA key of 2040 bits"},
		"must-staple":   {func(f Files) { writeSelfSigned(t, f, ecdsaKey(t, elliptic.P256()), staple) }, "server.crt asks for OCSP stapling"},
		"a text":        {func(f Files) { writeText(t, f.CA, "one\n"+whole+"two\n"+whole) }, ""},
		"a cut CA":      {func(f Files) { writeText(t, f.CA, whole+cut) }, "ca.crt has a PEM block that is cut short"},
		"a cut CA, one": {func(f Files) { writeText(t, f.CA, cut+"\n"+whole) }, "ca.crt has a PEM block that is cut short"},
		"a damaged CA":  {func(f Files) { writeText(t, f.CA, whole+damaged) }, "ca.crt has a PEM block that is cut short"},
		"another kind":  {func(f Files) { writeText(t, f.CA, whole+"-----BEGIN A-----\n!!!\n-----END A-----\n") }, "ca.crt has a PEM block that is cut short"},
		"the old name":  {func(f Files) { writeText(t, f.CA, strings.ReplaceAll(damaged, "CERT", "X509 CERT")+whole) }, "ca.crt has a PEM block that is cut short"},
		"a key":         {func(f Files) { writeText(t, f.CA, whole+readText(t, f.Key)) }, ""},
		"a CA with headers": {func(f Files) { writeText(t, f.CA, whole+strings.Replace(whole, "-----\n", "-----\nA: b\n\n", 1)) },
			"ca.crt has a PEM block that is cut short"},
	} {
		f, _ := files(t, testutil.NewAuthority(t, "authority"))
		f.ForEnvoy = true
		c, err := Follow(f, "listen", zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		before := c.Current(time.Now())
		test.replace(f)
		now, fault := c.Current(c.checked.Add(Recheck)), c.Fault()
		if test.want == "" && (now == before || fault != nil) {
			t.Errorf("%s: not read, fault %v", name, fault)
		}
		if test.want != "" && (now != before || fault == nil || !strings.Contains(fault.Error(), test.want)) {
			t.Errorf("%s: fault %v, want %q", name, fault, test.want)
		}
		f.ForEnvoy = false
		if _, err := Read(f); err != nil {
			t.Errorf("%s: Go itself refuses it: %v", name, err)
		}
	}
}

// A chain with a damaged certificate is refused, too.
func TestO12_ADamagedChainIsRefused(t *testing.T) {
	t.Parallel()
	f, _ := files(t, testutil.NewAuthority(t, "authority"))
	f.ForEnvoy = true
	text := readText(t, f.Cert)
	writeText(t, f.Cert, text+text[:len(text)/2])
	if _, err := Read(f); err == nil || !strings.Contains(err.Error(), "server.crt has a PEM block that is cut short") {
		t.Error(err)
	}
}
