package xds

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
)

const secret = "sk-50%-of-%REQ(:path)%-is-secret"

// transports are transport settings by what they do.
func transports() map[string]*engines.Transport {
	return map[string]*engines.Transport{
		"key":    {Group: "key:80", Headers: []engines.Header{{Name: "Authorization", Value: "Bearer " + secret}}},
		"prefix": {Group: "prefix:80/50%25", Prefix: "/50%25/openai"},
		"tls":    {Group: "tls:443", TLS: &engines.TLS{ServerName: "example.com", CA: "a CA"}},
		"ip":     {Group: "ip:443", TLS: &engines.TLS{ServerName: "10.0.0.1", CA: "a CA"}},
		"any":    {Group: "any:443", TLS: &engines.TLS{ServerName: "example.com", Unchecked: true}},
	}
}

func by(t *engines.Transport, r engines.Replica) engines.Replica {
	r.Transport = t
	return r
}

// Each group has a cluster of its own, the plain cluster stays unchanged, and no name contains a
// secret.
func TestGroups(t *testing.T) {
	t.Parallel()
	ways := transports()
	starting := by(ways["ip"], ready("ip-0", "10.0.0.1:443"))
	starting.State = engines.Starting
	s := fleet(model("chat", ready("plain-0", "10.0.0.1:80"), by(ways["key"], ready("key-0", "10.0.0.1:80")),
		by(ways["key"], ready("key-1", "10.0.0.2:80")), by(ways["tls"], ready("tls-0", "10.0.0.1:443")), starting))
	r := mustBuild(t, Config{Listen: "127.0.0.1:1"}, s)
	if len(r.Faults) > 0 {
		t.Fatal(r.Faults)
	}
	got := map[string]string{}
	for name, m := range r.byCluster {
		got[name] = strings.Join(m.Replicas, " ")
		if strings.Contains(name, "secret") || strings.Contains(string(canonical(t, m.Endpoints.Message)), "secret") {
			t.Errorf("%s tells of the secret", name)
		}
	}
	want := map[string]string{"model/chat": "plain-0", "model/chat#key:80": "key-0 key-1", "model/chat#tls:443": "tls-0", "model/chat#ip:443": ""}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	alone := mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet(model("chat", ready("plain-0", "10.0.0.1:80"))))
	if alone.Models["chat"].Cluster.Version != r.Models["chat"].Cluster.Version {
		t.Error("the plain cluster depends on the others")
	}
	for _, k := range []resourceKind{clusterKind, endpointKind} {
		if len(r.all(k)) != len(want) || r.find(k, "model/chat#key:80") == nil {
			t.Errorf("Envoy would not be told of every %v", k)
		}
	}
}

// A change in one group changes no other resource.
func TestGroupsChange(t *testing.T) {
	t.Parallel()
	ways := transports()
	c := Config{Listen: "127.0.0.1:1"}
	key := by(ways["key"], ready("key-0", "10.0.0.1:80"))
	s := fleet(model("chat", ready("plain-0", "10.0.0.1:80"), key), model("other", ready("other-0", "10.0.0.1:80")))
	old := mustBuild(t, c, s)
	step := func(what string, want []string, replicas ...engines.Replica) {
		t.Helper()
		s := fleet(model("chat", replicas...), s.Models["other"])
		next, err := old.Rebuild(c, s)
		if err != nil || !sameBytes(next, mustBuild(t, c, s)) {
			t.Fatalf("%s: Rebuild differs from Build, %v", what, err)
		}
		var got []string
		changed := differences(old, next)
		for k := range kindCount {
			for name := range changed[k] {
				got = append(got, k.String()+" "+name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: changes %q, want %q", what, got, want)
		}
		old = next
	}
	plain := ready("plain-0", "10.0.0.1:80")
	again := *ways["key"]
	step("the same, said again", nil, plain, by(&again, key))
	failed := by(&again, key)
	failed.State = engines.Failed
	step("a failed one", []string{"endpoints model/chat#key:80"}, plain, failed)
	rotated := again
	rotated.Headers = []engines.Header{{Name: "authorization", Value: "Bearer other"}}
	step("another key", []string{"cluster model/chat#key:80"}, plain, by(&rotated, failed))
	step("no member", []string{"cluster model/chat#key:80", "endpoints model/chat#key:80"}, plain)
}

// Invalid transport settings exclude their own replicas and no others. The message contains no
// secret.
func TestATransportThatCannotBe(t *testing.T) {
	t.Setenv("SSL_CERT_FILE", filepath.Join(t.TempDir(), "none"))
	for name, way := range map[string]*engines.Transport{
		"header":       {Group: "g", Headers: []engines.Header{{Name: "x", Value: "secret\r\nx: y"}}},
		"not UTF-8":    {Group: "g", Headers: []engines.Header{{Name: "x", Value: "secret\xff"}}},
		"prefix":       {Group: "g", Prefix: "secret"},
		"no CA at all": {Group: "g", TLS: &engines.TLS{ServerName: "h"}},
	} {
		r := mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet(model("m", ready("m-0", "10.0.0.1:80"), by(way, ready("m-1", "10.0.0.2:80")))))
		if len(r.Faults) != 1 || r.Faults[0].Replica != "m-1" || strings.Contains(r.Faults[0].Error(), "secret") {
			t.Errorf("%s: %v", name, r.Faults)
		}
		if m := r.Models["m"]; m == nil || len(m.Groups) > 0 || !slices.Equal(m.Replicas, []string{"m-0"}) {
			t.Errorf("%s: %+v", name, m)
		}
	}
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", bundle)
	source, err := trustedAuthorities("", false)
	if err != nil || source.GetFilename() != bundle {
		t.Errorf("%v, %v", source, err)
	}
}

// Envoys of other hosts need no file of this host.
func TestU16_TheListOfTheSystemIsSentToOtherHosts(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, []byte("a list"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", bundle)
	c := managedConfig("/run")
	c.Elsewhere = Elsewhere{Gateways: otherGateway, ServerName: "gateways.example"}
	way := &engines.Transport{Group: "g", TLS: &engines.TLS{ServerName: "h"}}
	r := mustBuild(t, c, fleet(model("m", by(way, ready("m-0", "10.0.0.1:80")))))
	packed := r.Models["m"].Groups["g"].Cluster.packed.Value
	if bytes.Contains(packed, []byte(bundle)) || !bytes.Contains(packed, []byte("a list")) {
		t.Errorf("the cluster does not have the list: %q", packed)
	}
}

// request is the request that a server got.
type request struct{ Engine, Path, Host, Authorization, Original string }

func tell(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)                                   //nolint:errcheck // the answer does not depend on it
		json.NewEncoder(w).Encode(request{name, r.RequestURI, r.Host, //nolint:errcheck // the client sees
			r.Header.Get("Authorization"), r.Header.Get(headers.OriginalPath)})
	}
}

// tlsServer starts a server for example.com and 127.0.0.1. It returns the certificate that signed
// the server's.
func tlsServer(t *testing.T, name string, asked func(serverName string)) (net.Addr, string) {
	t.Helper()
	s := httptest.NewUnstartedServer(tell(name))
	s.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		asked(hello.ServerName)
		return nil, nil
	}}
	// The handshake fails on purpose.
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return s.Listener.Addr(), string(ca)
}

// TestTransports sends requests through a real Envoy to servers with transport settings of their
// own.
func TestTransports(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, func(r *Resources) {
		alterListener(t, r, func(m *hcm.HttpConnectionManager) {
			var p extproc.ExternalProcessor
			alterFilter(t, m, extProcName, &p, func() { p.MessageTimeout = durationpb.New(testTimeout) })
		})
	})
	send := func(t *testing.T, group, list string) (request, int) {
		t.Helper()
		got := g.do(t, http.MethodPost, chatPath+"?a=%2Fb", []byte("{}"), "x-test-cluster", headers.GroupCluster("m", group), "x-test-list", list,
			"Authorization", "Bearer client", headers.OriginalPath, "/forged", "Host", "client.example")
		var r request
		if got.StatusCode == 200 {
			if err := json.Unmarshal(got.body, &r); err != nil {
				t.Fatal(err)
			}
		}
		return r, got.StatusCode
	}
	var mu sync.Mutex
	// sni is guarded by mu.
	var sni []string
	plain, keyed := serve(t, tell("plain")), serve(t, tell("keyed"))
	drops := droppingEngine(t, 10)
	secure, ca := tlsServer(t, "secure", func(name string) {
		mu.Lock()
		defer mu.Unlock()
		sni = append(sni, name)
	})
	ways := map[string]*engines.Transport{
		"key":   {Group: "key", Prefix: "/50%25/openai", Headers: []engines.Header{{Name: "Authorization", Value: "Bearer " + secret}}},
		"tls":   {Group: "tls", TLS: &engines.TLS{ServerName: "example.com", CA: ca}},
		"ip":    {Group: "ip", TLS: &engines.TLS{ServerName: "127.0.0.1", CA: ca}},
		"name":  {Group: "name", TLS: &engines.TLS{ServerName: "other.example", CA: ca}},
		"other": {Group: "other", TLS: &engines.TLS{ServerName: "example.com", CA: otherCA(t)}},
		"any":   {Group: "any", TLS: &engines.TLS{ServerName: "other.example", Unchecked: true}},
		"api":   {Group: "api", Prefix: "/a", API: "/v1%25/openai"},
		"root":  {Group: "root", API: "/"},
	}
	named := func(r engines.Replica, host string) engines.Replica {
		r.Host = host
		return r
	}
	all := []engines.Replica{named(replica("plain-0", plain), "plain.example"),
		by(ways["any"], replica("any", secure)), by(ways["api"], replica("api-0", drops)), by(ways["api"], replica("api-1", keyed)), by(ways["ip"], replica("ip", secure)),
		named(by(ways["key"], replica("key-0", drops)), "zero.example"), named(by(ways["key"], replica("key-1", keyed)), "one.example:81"),
		by(ways["name"], replica("name", secure)), by(ways["other"], replica("other", secure)), by(ways["root"], replica("root", plain)), by(ways["tls"], replica("tls", secure))}
	g.settle(t, "m", all...)

	if r, code := send(t, "", plain.String()); code != 200 || r != (request{"plain", chatPath + "?a=%2Fb", "plain.example", "", ""}) {
		t.Errorf("plain: %d %+v", code, r)
	}
	// The first attempt fails after its headers were changed. The second attempt must not change
	// them again.
	want := request{"keyed", "/50%25/openai" + chatPath + "?a=%2Fb", "one.example:81", "Bearer " + secret, chatPath + "?a=%2Fb"}
	if r, code := send(t, "key", list(drops, keyed)); code != 200 || r != want {
		t.Errorf("key and path: %d\n%+v, want\n%+v", code, r, want)
	}
	for group, path := range map[string]string{"api": "/a/v1%25/openai/chat/completions?a=%2Fb", "root": "/chat/completions?a=%2Fb"} {
		first := map[string]string{"api": list(drops, keyed), "root": plain.String()}[group]
		if r, code := send(t, group, first); code != 200 || r.Path != path || r.Original != chatPath+"?a=%2Fb" {
			t.Errorf("%s: %d %+v", group, code, r)
		}
	}
	for group, code := range map[string]int{"tls": 200, "ip": 200, "any": 200, "name": 502, "other": 502} {
		if r, got := send(t, group, secure.String()); got != code || got == 200 && (r.Engine != "secure" || r.Authorization != "") {
			t.Errorf("%s: %d %+v, want %d", group, got, r, code)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(sni)
	if names := slices.Compact(sni); !slices.Equal(names, []string{"", "example.com", "other.example"}) {
		t.Errorf("asked for the certificates of %q", names)
	}
}

// otherCA returns a certificate that has signed nothing.
func otherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Envoy compares texts and writes the addresses of certificates in their shortest form.
func TestAddressInACertificate(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"2001:db8:0::0001": "2001:db8::1", "2001:DB8::1": "2001:db8::1", "10.0.0.1": "10.0.0.1"} {
		socket, err := transportSocket(&engines.TLS{ServerName: name, CA: "a CA"}, false)
		if err != nil {
			t.Fatal(err)
		}
		var up tlsv3.UpstreamTlsContext
		if err := socket.GetTypedConfig().UnmarshalTo(&up); err != nil {
			t.Fatal(err)
		}
		san := up.CommonTlsContext.GetValidationContext().MatchTypedSubjectAltNames[0]
		if got := san.Matcher.GetExact(); got != want || san.SanType != tlsv3.SubjectAltNameMatcher_IP_ADDRESS || up.Sni != "" {
			t.Errorf("%s: %v, want %s", name, san, want)
		}
	}
}
