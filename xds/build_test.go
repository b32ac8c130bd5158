package xds

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ready(id, address string) engines.Replica {
	return engines.Replica{ID: id, State: engines.Ready, Address: netip.MustParseAddrPort(address)}
}

func fleet(models ...*engines.ModelSnapshot) *engines.Snapshot {
	s := &engines.Snapshot{Models: map[string]*engines.ModelSnapshot{}}
	for _, m := range models {
		s.Models[m.Name] = m
	}
	return s
}

func model(name string, replicas ...engines.Replica) *engines.ModelSnapshot {
	return &engines.ModelSnapshot{Model: engines.Model{Name: name}, Replicas: replicas}
}

func sample() *engines.Snapshot {
	starting := ready("chat-1", "127.0.0.1:9001")
	starting.State = engines.Starting
	draining := ready("chat-2", "127.0.0.1:9002")
	draining.State = engines.Draining
	return fleet(
		model("chat", ready("chat-0", "127.0.0.1:9000"), starting, draining, ready("chat-3", "[::1]:9003")),
		model("meta-llama/Llama-3.1:8b"),
	)
}

func mustBuild(t testing.TB, c Config, s *engines.Snapshot) *Resources {
	t.Helper()
	r, err := (*Resources)(nil).Rebuild(c, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGolden(t *testing.T) {
	t.Parallel()
	plain := mustBuild(t, Config{Listen: "0.0.0.0:8080"}, sample())
	other := mustBuild(t, Config{Listen: "[::1]:80", MaxBody: 1 << 10, MaxDuration: time.Minute, HideReplica: true}, sample())
	managed := mustBuild(t, managedConfig("/run/sluice"), sample())
	for name, r := range map[string]*Resource{
		"listener": plain.Listener, "routes": plain.Routes, "routes-hidden": other.Routes,
		"cluster": plain.Models["chat"].Cluster, "endpoints": plain.Models["chat"].Endpoints,
		"routes-managed": managed.Routes, "cluster-relay": managed.Own[headers.RelayCluster], "cluster-grpc": managed.Own[headers.GRPCCluster],
		"endpoints-none": plain.Models["meta-llama/Llama-3.1:8b"].Endpoints,
	} {
		got := canonical(t, r.Message)
		file := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s (run with -update if this is meant; -want +got):\n%s", name, d)
		}
	}
}

// canonical returns a message as JSON with stable white space and order, which protojson does not
// promise.
func canonical(t testing.TB, m proto.Message) []byte {
	t.Helper()
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The packed messages inside a message are valid too. The validation of the outer message does not
// check them.
func TestEveryMessageIsValid(t *testing.T) {
	t.Parallel()
	r := mustBuild(t, managedConfig("/run"), sample())
	seen := map[string]bool{}
	var check func(m proto.Message)
	check = func(m proto.Message) {
		if v, ok := m.(validatedMessage); ok {
			seen[string(m.ProtoReflect().Descriptor().Name())] = true
			if err := v.ValidateAll(); err != nil {
				t.Error(err)
			}
		}
		for _, inner := range packedIn(t, m.ProtoReflect()) {
			check(inner)
		}
	}
	check(r.Listener.Message)
	check(r.Routes.Message)
	check(r.Models["chat"].Cluster.Message)
	check(r.Models["chat"].Endpoints.Message)
	for _, own := range r.Own {
		check(own.Message)
	}
	for _, name := range []string{
		"HttpConnectionManager", "ExternalProcessor", "ExtAuthz", "Router", "HttpGrpcAccessLogConfig", "ExpressionFilter",
		"OverrideHost", "RingHash", "HttpProtocolOptions", "HeaderMutation", "FilterConfig", "Composite", "ExecuteFilterAction", "AiProtocolManager",
		"BodySizeLimit",
	} {
		if !seen[name] {
			t.Errorf("no %s was checked", name)
		}
	}
}

// packedIn returns the packed messages in a message, at any depth.
func packedIn(t testing.TB, m protoreflect.Message) []proto.Message {
	t.Helper()
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		return []proto.Message{inner}
	}
	var found []proto.Message
	visit := func(d protoreflect.FieldDescriptor, v protoreflect.Value) {
		if d.Message() != nil {
			found = append(found, packedIn(t, v.Message())...)
		}
	}
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case d.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				visit(d.MapValue(), v)
				return true
			})
		case d.IsList():
			for i := range v.List().Len() {
				visit(d, v.List().Get(i))
			}
		default:
			visit(d, v)
		}
		return true
	})
	return found
}

// Envoy itself accepts the resources, as a static configuration.
func TestEnvoyAcceptsWhatIsBuilt(t *testing.T) {
	t.Parallel()
	c := managedConfig("/run")
	c.AskSource = true
	r := mustBuild(t, c, sample())
	var listener, routeTable, first, source dict
	for m, into := range map[*Resource]*dict{r.Listener: &listener, r.Routes: &routeTable,
		r.Filters[firstRequestName]: &first, r.Filters[sourceName]: &source} {
		if err := json.Unmarshal(canonical(t, m.Message), into); err != nil {
			t.Fatal(err)
		}
	}
	// A static listener has its filters at hand.
	listener["listener_filters"] = []any{first}
	filters := listener["filter_chains"].([]any)[0].(dict)["filters"].([]any)
	filters[0] = source
	manager := filters[1].(dict)["typed_config"].(dict)
	delete(manager, "rds")
	manager["route_config"] = routeTable
	dir := shortDir(t)
	config := bootstrapDict(dir)
	delete(config["dynamic_resources"].(dict), "lds_config")
	delete(config["dynamic_resources"].(dict), "cds_config")
	static := config["static_resources"].(dict)
	static["listeners"] = []any{listener}
	all := static["clusters"].([]dict)
	for name := range r.all(clusterKind) {
		var c dict
		if err := json.Unmarshal(canonical(t, r.find(clusterKind, name).Message), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	static["clusters"] = all
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), envoyBinary(t), "--mode", "validate", "-c", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "OK") {
		t.Errorf("%v: %s", err, out)
	}
	if strings.Contains(string(out), "deprecated") {
		t.Errorf("something is deprecated: %s", out)
	}
}

// In random histories of a fleet, Rebuild returns what Build returns. Clusters keep their bytes as
// long as the transport settings are the same. differences names the changed resources.
func TestScalingChangesOnlyEndpoints(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := managedConfig("/run")
		s := fleet()
		old := mustBuild(t, c, s)
		for step := range 40 {
			want := nameSet{}
			s = mutate(random, s, &want)
			next, err := old.Rebuild(c, s)
			if err != nil {
				t.Fatal(err)
			}
			if step%8 == 0 && !sameBytes(mustBuild(t, c, s), next) {
				t.Fatalf("seed %d, step %d: Rebuild differs from Build", seed, step)
			}
			if d := cmp.Diff(want, differences(old, next)); d != "" {
				t.Fatalf("seed %d, step %d: changes (-want +got):\n%s", seed, step, d)
			}
			old = next
		}
	}
}

// mutate changes one thing in a fleet. It adds to want the resources that must change.
func mutate(random *rand.Rand, s *engines.Snapshot, want *nameSet) *engines.Snapshot {
	next := &engines.Snapshot{Models: maps.Clone(s.Models)}
	name := fmt.Sprintf("m%d", random.IntN(5))
	m := next.Models[name]
	switch n := random.IntN(10); {
	case m == nil:
		next.Models[name] = model(name)
		want.put(clusterKind, "model/"+name)
		want.put(endpointKind, "model/"+name)
	case n == 0:
		delete(next.Models, name)
		want.put(clusterKind, "model/"+name)
		want.put(endpointKind, "model/"+name)
	// a replica that is no longer ready
	case n < 3 && len(m.Replicas) > 0:
		changed := slices.Clone(m.Replicas)
		i := random.IntN(len(changed))
		if changed[i].State == engines.Ready {
			want.put(endpointKind, "model/"+name)
		}
		changed[i].State = engines.Draining
		next.Models[name] = model(name, changed...)
	// a replica that returns at another address
	case n == 3 && len(m.Replicas) > 0:
		changed := slices.Clone(m.Replicas)
		r := &changed[random.IntN(len(changed))]
		r.Address = netip.AddrPortFrom(r.Address.Addr(), r.Address.Port()+1)
		if r.State == engines.Ready {
			want.put(endpointKind, "model/"+name)
		}
		next.Models[name] = model(name, changed...)
	// a change that does not matter to Envoy
	case n < 6:
		changed := slices.Clone(m.Replicas)
		for i := range changed {
			changed[i].Slots, changed[i].Restarts = random.IntN(9), random.IntN(9)
		}
		next.Models[name] = model(name, changed...)
	default:
		id := fmt.Sprintf("%s-%d", name, random.Uint32())
		added := append(slices.Clone(m.Replicas), ready(id, fmt.Sprintf("10.0.%d.%d:%d", random.IntN(256), random.IntN(256), 1+random.IntN(60_000))))
		next.Models[name] = model(name, added...)
		want.put(endpointKind, "model/"+name)
	}
	return next
}

func sameBytes(a, b *Resources) bool {
	same := func(a, b *Resource) bool {
		return a.Name == b.Name && a.Version == b.Version && bytes.Equal(a.packed.Value, b.packed.Value) && maps.Equal(a.replicas, b.replicas)
	}
	return same(a.Listener, b.Listener) && same(a.Routes, b.Routes) && maps.EqualFunc(a.Own, b.Own, same) && maps.EqualFunc(a.Models, b.Models, func(a, b *Model) bool {
		return same(a.Cluster, b.Cluster) && same(a.Endpoints, b.Endpoints) && slices.Equal(a.Replicas, b.Replicas)
	})
}

func TestFaultsLeaveTheRest(t *testing.T) {
	t.Parallel()
	none := engines.Replica{ID: "none", State: engines.Ready}
	r := mustBuild(t, Config{Listen: "127.0.0.1:1"}, fleet(
		model("good", ready("good-0", "10.0.0.1:1")),
		model("half", none, ready("any", "0.0.0.0:80"), ready("zone", "[fe80::1%eth0]:80"), ready("port", "10.0.0.1:0"),
			ready("half-0", "10.0.0.1:1"), ready("twin", "[::ffff:10.0.0.1]:1"), ready("half-1", "[::ffff:10.0.0.2]:1")),
		model("bad\nname", ready("x", "10.0.0.1:1")), model("bad\xffname"), model(""), model(" spaces "),
		model("bad-id", ready("\xff", "10.0.0.1:1")),
	))
	if got := slices.Sorted(maps.Keys(r.Models)); !slices.Equal(got, []string{"good", "half"}) {
		t.Errorf("models %q", got)
	}
	if got := r.Models["half"].Replicas; !slices.Equal(got, []string{"half-0", "half-1"}) {
		t.Errorf("replicas %q", got)
	}
	if b := canonical(t, r.Models["half"].Endpoints.Message); !bytes.Contains(b, []byte(`"10.0.0.2"`)) {
		t.Errorf("a mapped address was not unmapped: %s", b)
	}
	var got []string
	for _, f := range r.Faults {
		got = append(got, f.Model+"/"+f.Replica)
		if f.Err == nil || !strings.Contains(f.Error(), f.Err.Error()) {
			t.Errorf("fault %v says nothing", f)
		}
	}
	want := []string{"/", " spaces /", "bad\nname/", "bad-id/", "bad\xffname/", "half/any", "half/none", "half/port", "half/twin", "half/zone"}
	if !slices.Equal(got, want) {
		t.Errorf("faults %q, want %q", got, want)
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{}, {Listen: "8080"}, {Listen: "example.com:80"}, {Listen: "127.0.0.1:http"}, {Listen: "127.0.0.1:70000"},
		{Listen: ":1", MaxBody: -1}, {Listen: ":1", MaxBody: 1 << 33}, {Listen: ":1", MaxDuration: -1},
		{Listen: ":1", RelaySocket: "relay.sock"}, {Listen: ":1", GRPCSocket: "/" + strings.Repeat("x", 107)},
	} {
		if r, err := (*Resources)(nil).Rebuild(c, fleet()); err == nil || r != nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	for listen, want := range map[string]string{
		":80": "0.0.0.0:80", "localhost:80": "127.0.0.1:80", "[::]:0": "[::]:0", "10.1.2.3:80": "10.1.2.3:80",
	} {
		if got, err := (Config{Listen: listen}).listenAddress(); err != nil || got.String() != want {
			t.Errorf("%s is %s, %v", listen, got, err)
		}
		socket := newListener(Config{Listen: listen}).GetAddress().GetSocketAddress()
		if socket.GetIpv4Compat() != (want == "[::]:0") {
			t.Errorf("%s: IPv4 too is %t", listen, socket.GetIpv4Compat())
		}
	}
	for size, want := range map[int64]string{32 << 20: "32 MiB", 3 << 9: "1536 bytes", 2 << 10: "2 KiB"} {
		if got := bytesText(size); got != want {
			t.Errorf("%d is %q", size, got)
		}
	}
}

func TestAModelThatIsOnlyAdmittedIsNotEnvoysConcern(t *testing.T) {
	r, err := (*Resources)(nil).Rebuild(Config{Listen: "127.0.0.1:1"}, fleet(
		&engines.ModelSnapshot{Model: engines.Model{Name: "here", Launcher: engines.Local}},
		&engines.ModelSnapshot{Model: engines.Model{Name: "elsewhere", Launcher: engines.None}}))
	if err != nil || r.Models["here"] == nil || r.Models["elsewhere"] != nil {
		t.Errorf("%v, %v", r.Models, err)
	}
}
