package xds

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// A replaced certificate changes its secret alone, so that Envoy keeps the listener and its
// connections.
func TestO12_AReplacedCertificateChangesNoListener(t *testing.T) {
	t.Parallel()
	c := Config{Listen: "127.0.0.1:1", TLS: TLS{Certificate: "one", Key: "the-private-text", ClientCA: "ca"}}
	old := mustBuild(t, c, sample())
	c.TLS.Certificate = "two"
	next, err := old.Rebuild(c, sample())
	if err != nil {
		t.Fatal(err)
	}
	changed := differences(old, next)
	for k := range kindCount {
		want := k == secretKind
		if names := slices.Collect(maps.Keys(changed[k])); (len(names) > 0) != want || want && !slices.Equal(names, []string{listenSecret}) {
			t.Errorf("changed %s: %q", k, names)
		}
	}
	for name, want := range map[string]string{listenSecret: "two", clientSecret: "ca"} {
		if r := next.find(secretKind, name); r == nil || !strings.Contains(string(r.packed.Value), want) {
			t.Errorf("secret %s: %v", name, r)
		}
	}
	if strings.Contains(string(next.Listener.packed.Value), "the-private-text") {
		t.Error("the listener holds the key")
	}
	if plain := mustBuild(t, Config{Listen: "127.0.0.1:1"}, sample()); len(plain.Secrets) != 0 || plain.Listener.Version == next.Listener.Version {
		t.Errorf("without TLS: %v", plain.Secrets)
	}
}

// An Envoy of another host gets the certificate as well.
func TestO12_EnvoysElsewhereGetTheCertificate(t *testing.T) {
	t.Parallel()
	c := managedConfig("/run")
	c.Elsewhere = Elsewhere{Gateways: otherGateway, ServerName: "gateways.example"}
	c.TLS = TLS{Certificate: "one", Key: "key"}
	r := &remote{peer: "10.0.0.1:1", local: "10.0.0.2:2", node: node{certificate: "/c", authority: "/a"}}
	view, changed, err := r.view(mustBuild(t, c, sample()))
	if err != nil {
		t.Fatal(err)
	}
	if _, told := changed[secretKind][listenSecret]; !told || view.find(secretKind, listenSecret) == nil {
		t.Errorf("secrets %v, changed %v", view.Secrets, changed[secretKind])
	}
}

func TestO12_HalfACertificateIsRefused(t *testing.T) {
	t.Parallel()
	for _, half := range []TLS{{Certificate: "c"}, {Key: "k"}, {ClientCA: "a"}} {
		if _, err := (*Resources)(nil).Rebuild(Config{Listen: "127.0.0.1:1", TLS: half}, sample()); err == nil {
			t.Errorf("%+v was accepted", half)
		}
	}
}
