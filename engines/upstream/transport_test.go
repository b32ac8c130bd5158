package upstream

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// newTLSServer starts a TLS server whose list of models is below a path and needs a key. It returns
// the server's URL and certificate (PEM).
func newTLSServer(t *testing.T, key string) (url, ca string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+key:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path != "/openai/v1/models" || !strings.HasPrefix(r.Host, "127.0.0.1:"):
			w.WriteHeader(http.StatusTeapot)
		default:
			fmt.Fprint(w, `{"data":[{"id":"chat"}]}`)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // The test causes errors on purpose.
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL + "/openai", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func bearer(key string) map[string]string { return map[string]string{"authorization": "Bearer " + key} }

func TestCheckWithTLSAndKey(t *testing.T) {
	url, ca := newTLSServer(t, "secret")
	for name, c := range map[string]struct {
		Access
		reason string // "" means ready
	}{
		"as it should be":        {Access{Headers: bearer("secret"), CA: ca}, ""},
		"any certificate":        {Access{Headers: bearer("secret"), InsecureSkipVerify: true}, ""},
		"not the system's":       {Access{Headers: bearer("secret")}, "its certificate is not trusted: this machine does not know who has signed it: name the file with that authority in ca_file"},
		"not this authority's":   {Access{Headers: bearer("secret"), CA: "none"}, "its certificate is not trusted: "},
		"another key":            {Access{Headers: bearer("wrong"), CA: ca}, "its list of models answered 401: check the key that the gateway sends"},
		"no key, and it says so": {Access{CA: ca}, "its list of models answered 401"},
	} {
		t.Run(name, func(t *testing.T) {
			l, fleet := newTestLauncher(t, Desired{
				Models: []Model{{Model: engines.Model{Name: "m"}, URLs: []string{url}}},
				Access: map[string]Access{url: c.Access},
			})
			l.CheckOnce(t.Context())
			r := fleet.Snapshot().Models["m"].Replicas[0]
			if (r.State == engines.Ready) != (c.reason == "") || !strings.HasPrefix(r.Reason, c.reason) || strings.Contains(r.Reason, "secret") {
				t.Errorf("%s: %s", r.State, r.Reason)
			}
			if id := strings.TrimPrefix(url, "https://"); r.ID != id || r.Host+"/openai" != id || r.Group() != id || r.Transport.Prefix != "/openai" ||
				r.Transport.TLS.ServerName != "127.0.0.1" {
				t.Errorf("replica %s at %s by %+v", r.ID, r.Host, *r.Transport)
			}
			if text, err := json.Marshal(r); err != nil || strings.Contains(fmt.Sprintf("%s%v%+v%#v", text, r, r.Transport, r.Transport), "Bearer") {
				t.Errorf("a replica shows its secrets: %s, %v", text, err)
			}
		})
	}
}

// A URL with the wrong scheme says so.
// A server may have OpenAI's API below another path than /v1.
func TestCheckOfAnAPIElsewhere(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch asked = append(asked, r.URL.Path); r.URL.Path {
		case "/a/v1beta/openai/models":
			fmt.Fprint(w, `{"data":[{"id":"chat"}]}`)
		case "/a/ok":
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	url := s.URL + "/a"
	l, fleet := newTestLauncher(t, Desired{Models: []Model{{Model: engines.Model{Name: "chat"}, URLs: []string{url}}},
		Access: map[string]Access{url: {API: "/v1beta/openai"}}, Settings: map[string]Settings{url: {HealthPath: "/ok"}}})
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {replicaID(url): engines.Ready}})
	if d := cmp.Diff([]string{"/a/ok", "/a/v1beta/openai/models"}, asked); d != "" {
		t.Error(d)
	}
	l.Set(Desired{Models: []Model{{Model: engines.Model{Name: "chat"}, URLs: []string{url}}},
		Access: map[string]Access{url: {API: "/"}}, Settings: map[string]Settings{url: {HealthPath: "/no"}}})
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {replicaID(url): engines.Failed}})
}

func TestCheckWithTheWrongScheme(t *testing.T) {
	t.Parallel()
	list := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"m"}]}`) }
	plain := httptest.NewServer(http.HandlerFunc(list))
	defer plain.Close()
	closing, err := net.Listen("tcp", "127.0.0.1:0") // as Python's servers do that speak TLS
	if err != nil {
		t.Fatal(err)
	}
	defer closing.Close()
	go func() {
		for c, err := closing.Accept(); err == nil; c, err = closing.Accept() {
			c.Close()
		}
	}()
	for url, want := range map[string]string{
		strings.Replace(plain.URL, "http:", "https:", 1): "it answers without TLS: write http:// in its URL",
		"http://" + closing.Addr().String():              "it closed the connection without an answer: write https:// in its URL if it speaks TLS",
	} {
		l, fleet := newTestLauncher(t, Desired{Models: []Model{{Model: engines.Model{Name: "m"}, URLs: []string{url}}},
			Access: map[string]Access{url: {}}})
		l.CheckOnce(t.Context())
		if r := fleet.Snapshot().Models["m"].Replicas[0]; r.State != engines.Failed || !strings.HasPrefix(r.Reason, want) {
			t.Errorf("%s: %s: %s", url, r.State, r.Reason)
		}
	}
}

// groupsOf returns the transport groups of a model's replicas by id.
func groupsOf(f *engines.Fleet, model string) map[string]string {
	groups := map[string]string{}
	for _, r := range f.Snapshot().Models[model].Replicas {
		groups[r.ID] = r.Group()
	}
	return groups
}

// Servers with equal access form a group. A group keeps its name and value as long as its access
// stays the same.
func TestGroups(t *testing.T) {
	a, b, c := "http://a:80", "http://b:80", "http://c:80"
	desired := func(access map[string]Access, urls ...string) Desired {
		return Desired{Models: []Model{{Model: engines.Model{Name: "m"}, URLs: urls}}, Access: access}
	}
	x, y := Access{Headers: map[string]string{"x": "1"}}, Access{Headers: map[string]string{"x": "2"}}
	l, fleet := newTestLauncher(t, desired(map[string]Access{a: x, b: x}, a, b, c))
	check := func(want map[string]string) {
		t.Helper()
		if d := cmp.Diff(want, groupsOf(fleet, "m")); d != "" {
			t.Fatal(d)
		}
	}
	check(map[string]string{"a:80": "a:80", "b:80": "a:80", "c:80": ""})
	version := fleet.Snapshot().Version
	l.Set(desired(map[string]Access{a: x, b: x}, a, b, c))
	if fleet.Snapshot().Version != version {
		t.Error("the same configuration changed the fleet")
	}
	// The server that gave the group its name leaves the group.
	l.Set(desired(map[string]Access{a: x, b: x, c: x}, b, c))
	check(map[string]string{"b:80": "a:80", "c:80": "a:80"})
	l.Set(desired(map[string]Access{a: y, b: x, c: y}, a, b, c)) // It returns with another access.
	check(map[string]string{"a:80": "a:80+", "b:80": "a:80", "c:80": "a:80+"})
	l.Set(desired(nil, a, b, c))
	check(map[string]string{"a:80": "", "b:80": "", "c:80": ""})
}

// A server whose key changes gets requests only after a check with the new key. Its models stay in
// the fleet meanwhile.
func TestChangedKeyIsCheckedFirst(t *testing.T) {
	url, ca := newTLSServer(t, "secret")
	id := strings.TrimPrefix(url, "https://")
	desired := func(key string) Desired {
		return Desired{Discover: discover(url), Access: map[string]Access{url: {Headers: bearer(key), CA: ca}}}
	}
	l, fleet := newTestLauncher(t, desired("secret"))
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Ready}})
	l.mu.Lock()
	before := l.servers[url]
	l.mu.Unlock()
	l.Set(desired("wrong"))
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Starting}})
	// The result of a check that began earlier.
	l.applyResult(before, checkResult{list: &modelList{names: []string{"other"}}})
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Starting}})
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Failed}})
	l.Set(desired("secret"))
	l.CheckOnce(context.Background())
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Ready}})
}

func TestReplicaID(t *testing.T) {
	for url, want := range map[string][2]string{
		"http://10.0.0.5:8000":            {"10.0.0.5:8000", "10.0.0.5:8000"},
		"https://api.example.com":         {"api.example.com:443", "api.example.com"},
		"https://api.example.com:443/v1/": {"api.example.com:443", "api.example.com"},
		"http://h:80/openai/v1":           {"h:80/openai", "h"},
		"https://h:80/a/b/":               {"h:80/a/b", "h:80"},
		"https://[::1]:443":               {"[::1]:443", "[::1]"},
		"https://h:443#KEY_B":             {"h:443#KEY_B", "h"},
		"http://h:80/a#2":                 {"h:80/a#2", "h"},
	} {
		if id, name := replicaID(url), hostHeader(url); id != want[0] || name != want[1] {
			t.Errorf("%s is %s at %s, want %v", url, id, name, want)
		}
	}
}

// TestT6_KeysOfOneServer: two keys at one URL are two servers, of which each has its own health,
// slots, names of models and group. No name shows a key.
func TestT6_KeysOfOneServer(t *testing.T) {
	var refusesA atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Authorization"); key != "Bearer sk-a" && key != "Bearer sk-b" || key == "Bearer sk-a" && refusesA.Load() || r.URL.Path != "/api/v1/models" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"data":[{"id":"chat"}]}`)
	}))
	t.Cleanup(s.Close)
	a, b := s.URL+"/api", s.URL+"/api#KEY_B"
	l, fleet := newTestLauncher(t, Desired{
		Models:   []Model{{Model: engines.Model{Name: "mine"}, URLs: []string{a, b}, Names: map[string]string{b: "chat"}}},
		Discover: discover(a, b),
		Access:   map[string]Access{a: {Headers: bearer("sk-a")}, b: {Headers: bearer("sk-b")}},
		Settings: map[string]Settings{a: {Slots: 1}, b: {Slots: 2}},
	})
	l.CheckOnce(t.Context())
	id, other := replicaID(a), replicaID(a)+"#KEY_B"
	both := states{id: engines.Ready, other: engines.Ready}
	expectStates(t, fleet, map[string]states{"mine": both, "chat": both})
	if d := cmp.Diff(map[string]string{id: id, other: other + "=chat"}, groupsOf(fleet, "mine")); d != "" {
		t.Error(d)
	}
	for i, r := range fleet.Snapshot().Models["mine"].Replicas {
		if r.Slots != i+1 || r.Host != strings.TrimPrefix(s.URL, "http://") || r.Transport.Prefix != "/api" {
			t.Errorf("%+v", r)
		}
	}
	l.RecordFailure(other, "mine", "answered 500")
	expectStates(t, fleet, map[string]states{"mine": {id: engines.Ready, other: engines.Failed}, "chat": both})
	refusesA.Store(true)
	l.CheckOnce(t.Context())
	left := states{id: engines.Failed, other: engines.Ready}
	expectStates(t, fleet, map[string]states{"mine": left, "chat": left})
	if f := l.Faults(); len(f) != 1 || f[a].Reason != "its list of models answered 401: check the key that the gateway sends" {
		t.Errorf("faults: %+v", f)
	}
	if text := fmt.Sprintf("%+v %+v", l.Servers(), fleet.Snapshot().Models["mine"].Replicas); strings.Contains(text, "sk-") {
		t.Errorf("a key is shown: %s", text)
	}
}
