package upstream

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/engines"
)

// clashesOf returns the names that clash, with the servers that list them.
func clashesOf(l *Launcher) map[string][]string {
	all := map[string][]string{}
	for _, c := range l.Clashes() {
		all[c.Name] = c.Servers
	}
	return all
}

// TestX3_NamesOfTheConfiguration: a discovered server takes no name of the configuration, unless it
// may join a model of that name.
func TestX3_NamesOfTheConfiguration(t *testing.T) {
	own := newTestServer(t, "/v1/models", "x")
	other := newTestServer(t, "/v1/models", "remote", "launched", "alias", "pool", "elsewhere", "free")
	reserved := map[string]Reserved{
		"remote": {Owner: "a model of the configuration", Joinable: true}, "launched": {Owner: "a model of the configuration", Joinable: true},
		"elsewhere": {Owner: "a model with launcher: none"}, "alias": {Owner: "another name"}, "pool": {Owner: "a pool"},
	}
	desired := Desired{
		Models:   []Model{{Model: engines.Model{Name: "remote", Launcher: engines.Upstream}, URLs: []string{own.URL}}},
		Discover: discover(other.URL), Reserved: reserved,
	}
	l, fleet := newTestLauncher(t, desired)
	local := engines.Part{Models: []engines.Model{{Name: "launched", Launcher: engines.Local}}}
	fleet.Set("local", local)
	l.CheckOnce(t.Context())
	id := other.id()
	expectStates(t, fleet, map[string]states{"remote": {own.id(): engines.Ready}, "free": {id: engines.Ready}, "launched": {}})
	want := map[string][]string{"remote": {id}, "launched": {id}, "alias": {id}, "pool": {id}, "elsewhere": {id}}
	if d := cmp.Diff(want, clashesOf(l)); d != "" {
		t.Errorf("clashes (-want +got):\n%s", d)
	}
	if m := fleet.Snapshot().Models["launched"]; m.Discovered || m.Launcher != engines.Local {
		t.Errorf("the model became %+v", m.Model)
	}

	desired.Discover = []Discovered{{URL: other.URL, Join: true}}
	l.Set(desired)
	expectStates(t, fleet, map[string]states{"remote": {own.id(): engines.Ready, id: engines.Ready}, "free": {id: engines.Ready},
		"launched": {id: engines.Ready}})
	want = map[string][]string{"alias": {id}, "pool": {id}, "elsewhere": {id}}
	if d := cmp.Diff(want, clashesOf(l)); d != "" {
		t.Errorf("clashes with join (-want +got):\n%s", d)
	}
	if m := fleet.Snapshot().Models["launched"]; m.Discovered || m.Launcher != engines.Local {
		t.Errorf("the joined model became %+v", m.Model)
	}

	// A reload takes join away, and then the server.
	desired.Discover = discover(other.URL)
	l.Set(desired)
	expectStates(t, fleet, map[string]states{"remote": {own.id(): engines.Ready}, "free": {id: engines.Ready}, "launched": {}})
	desired.Discover = nil
	l.Set(desired)
	if got := clashesOf(l); len(got) != 0 {
		t.Errorf("clashes of a server that is gone: %v", got)
	}
}

// TestX3_OwnServerIsNoClash: a server of a model that is discovered too lists the model's name.
func TestX3_OwnServerIsNoClash(t *testing.T) {
	a := newTestServer(t, "/v1/models", "remote", "more")
	l, fleet := newTestLauncher(t, Desired{
		Models:   []Model{{Model: engines.Model{Name: "remote", Launcher: engines.Upstream}, URLs: []string{a.URL}}},
		Discover: discover(a.URL), Reserved: map[string]Reserved{"remote": {Joinable: true}},
	})
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"remote": {a.id(): engines.Ready}, "more": {a.id(): engines.Ready}})
	if got := clashesOf(l); len(got) != 0 {
		t.Errorf("clashes: %v", got)
	}
}

// TestX3_ClashIsLoggedOnce: checks of a server repeat every ten seconds, its log line does not.
func TestX3_ClashIsLoggedOnce(t *testing.T) {
	a := newTestServer(t, "/v1/models", "remote", "a b")
	core, logs := observer.New(zap.WarnLevel)
	l := New(Config{Fleet: engines.NewFleet(), Log: zap.New(core)})
	t.Cleanup(l.Client.CloseIdleConnections)
	l.Set(Desired{Discover: discover(a.URL), Reserved: map[string]Reserved{"remote": {Owner: "a pool"}}})
	for range 3 {
		l.CheckOnce(t.Context())
	}
	for _, message := range []string{"model name clash found", "discovered names refused"} {
		if n := logs.FilterMessage(message).Len(); n != 1 {
			t.Errorf("%s: %d lines", message, n)
		}
	}
}

// TestX3_RefusedNamesAreShown: names that no model of the file could have are counted, shown in
// part, and served by nobody.
func TestX3_RefusedNamesAreShown(t *testing.T) {
	names := []string{"fine", "/models/x", "a b", "ünï", strings.Repeat("x", 300), "a//b", "../up"}
	for i := range maxModels {
		names = append(names, fmt.Sprint("z", i))
	}
	a := newTestServer(t, "/v1/models", names...)
	l, fleet := newTestLauncher(t, Desired{Discover: discover(a.URL)})
	l.CheckOnce(t.Context())
	got := l.RefusedNames()
	if len(got) != 1 || got[0].Server != a.URL || got[0].Count != 6 || len(got[0].Names) != maxShownNames || got[0].Beyond != 1 {
		t.Fatalf("refused: %+v", got)
	}
	if n := len(fleet.Snapshot().Models); n != maxModels || fleet.Snapshot().Models["fine"] == nil {
		t.Errorf("%d models", n)
	}
	a.models.Store(&[]string{"fine"})
	l.CheckOnce(t.Context())
	if got := l.RefusedNames(); len(got) != 0 {
		t.Errorf("refused names of a server that was put right: %+v", got)
	}
}

func TestX3_Messages(t *testing.T) {
	for want, c := range map[string]interface{ Message() string }{
		"The server h:1 lists chat, which is a pool. It gets no requests for it.":        Clash{"chat", Reserved{Owner: "a pool"}, []string{"h:1"}},
		"The servers h:1, h:2 list auto, which is a model. They get no requests for it.": Clash{"auto", Reserved{Owner: "a model"}, []string{"h:1", "h:2"}},
		`The server h:1 lists models whose names cannot be used: "a b", "c d" and 3 more. A name is ` + engines.NameRule + ". " +
			"The server h:1 lists more models than the limit of 1000. Not served: 7.": RefusedNames{Server: "h:1", Names: []string{`"a b"`, `"c d"`}, Count: 5, Beyond: 7},
	} {
		if got := c.Message(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestU17_ModelsAreFiltered: a server serves those of its models that the patterns name.
func TestU17_ModelsAreFiltered(t *testing.T) {
	a := newTestServer(t, "/v1/models", "Qwen/Qwen2.5-7B", "qwen-small", "llama", "qwen/embed", "remote")
	d := Desired{Discover: []Discovered{{URL: a.URL, Models: []string{"qwen*", "*/*2.5*", "remote"}}}, Reserved: map[string]Reserved{"remote": {Owner: "a pool"}}}
	l, fleet := newTestLauncher(t, d)
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"Qwen/Qwen2.5-7B": {a.id(): engines.Ready}, "qwen-small": {a.id(): engines.Ready}, "qwen/embed": {a.id(): engines.Ready}})
	if len(clashesOf(l)) != 1 {
		t.Errorf("clashes: %v", l.Clashes())
	}
	seen := l.Servers()[0]
	if seen.ListedCount != 5 || len(seen.Serves) != 3 || seen.Filtered != 1 || !cmp.Equal(seen.Clashes, []string{"remote"}) || !seen.Discovered || seen.Addresses != 1 {
		t.Errorf("seen: %+v", seen)
	}
	d.Discover[0].Models = []string{"llama"}
	l.Set(Desired{Discover: d.Discover})
	expectStates(t, fleet, map[string]states{"llama": {a.id(): engines.Ready}})
	d.Discover[0].Models = []string{"lama*"} // A typing error leaves nothing to serve.
	l.Set(Desired{Discover: d.Discover})
	if idle := l.Idle(); !cmp.Equal(idle, []string{a.URL}) {
		t.Errorf("servers without a model: %v", idle)
	}
}

func TestU17_Patterns(t *testing.T) {
	for pattern, names := range map[string][2][]string{
		"a":      {{"a"}, {"", "ab", "ba"}},
		"*":      {{"", "a", "a/b"}, nil},
		"a*":     {{"a", "ab/c"}, {"ba"}},
		"*a":     {{"a", "b/a"}, {"ab"}},
		"a*b*c":  {{"abc", "axbxc", "abbcc"}, {"acb", "ab", "ac"}},
		"ab*bc":  {{"abbc", "ab/bc"}, {"abc"}},
		"*7B*":   {{"x-7B-y", "7B"}, {"7b"}},
		"a**b":   {{"ab", "axb"}, {"a"}},
		"a*b*ab": {{"abab", "axbyab"}, {"ab", "aab"}},
	} {
		for _, name := range names[0] {
			if !matches(pattern, name) {
				t.Errorf("%s does not match %q", pattern, name)
			}
		}
		for _, name := range names[1] {
			if matches(pattern, name) {
				t.Errorf("%s matches %q", pattern, name)
			}
		}
	}
}
