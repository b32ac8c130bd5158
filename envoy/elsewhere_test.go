package envoy

import (
	"bytes"
	"strings"
	"testing"
)

// The bootstrap of an Envoy of another host names files of certificates that Envoy watches, and no
// unix socket.
func TestB11_BootstrapElsewhere(t *testing.T) {
	t.Parallel()
	c := ElsewhereConfig{Addresses: []string{"gateways:9444", "10.0.0.2:9444"}, ServerName: "gateways.example", Listen: "10.0.0.7:80"}
	files, err := BootstrapElsewhere(c)
	if err != nil {
		t.Fatal(err)
	}
	text := string(files.Bootstrap)
	for _, want := range []string{`"STRICT_DNS"`, `"gateways"`, `"gateways.example"`, `"/etc/sluice-envoy/certificate.json"`, `"10.0.0.7:80"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the bootstrap lacks %s:\n%s", want, text)
		}
	}
	for _, not := range []string{`"pipe"`, `"admin"`, "tls.key"} {
		if strings.Contains(text, not) {
			t.Errorf("the bootstrap has %s:\n%s", not, text)
		}
	}
	if s := string(files.Certificate); !strings.Contains(s, `"/etc/sluice-tls/tls.key"`) || !strings.Contains(s, `"watched_directory"`) {
		t.Errorf("certificate:\n%s", s)
	}
	if s := string(files.Authority); !strings.Contains(s, `"/etc/sluice-tls/ca.crt"`) {
		t.Errorf("authority:\n%s", s)
	}
	if again, err := BootstrapElsewhere(c); err != nil || !bytes.Equal(again.Bootstrap, files.Bootstrap) {
		t.Errorf("other bytes the second time (%v)", err)
	}
	if _, err := BootstrapElsewhere(ElsewhereConfig{Addresses: []string{"gateways"}, ServerName: "g"}); err == nil {
		t.Error("an address without a port")
	}
}
