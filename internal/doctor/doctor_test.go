package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// What only trying shows is found: each fault of this machine is one line with a hint.
func TestO6_Examine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := `
listen: ` + taken.Addr().String() + `
admin: 127.0.0.1:0
auth: {mode: none}
redis: redis://127.0.0.1:1
upstreams: ["http://` + taken.Addr().String() + `", "http://127.0.0.1:1/v1"]
engines:
  - name: mine
    versions:
      - {version: "1", command: [no-such-program-of-an-engine], tasks: [embedding]}
models:
  - {name: m, task: embedding, engine: mine, launcher: local}
`
	c, err := config.Parse("test", []byte(strings.Replace(text, "127.0.0.1:0", "127.0.0.1:2", 1)))
	if err != nil {
		t.Fatal(err)
	}
	c.StateDir = filepath.Join(dir, "file", "state")
	found := Examine(t.Context(), Options{Config: c, Envoy: "/bin/true"})
	for what, want := range map[string]struct {
		level Level
		says  string
	}{
		"Envoy":                  {Fault, "/bin/true --version: the output is not that of an Envoy"},
		"state_dir":              {Fault, "not a directory"},
		"listen":                 {Fault, "in use by another program"},
		"redis":                  {Fault, "refused"},
		"program of engine mine": {Fault, "no-such-program-of-an-engine"},
		"GPUs":                   {OK, ""},
	} {
		one := of(found, what)
		if len(one) != 1 || one[0].Level != want.level || !strings.Contains(one[0].Says, want.says) || (one[0].Hint == "") != (want.level == OK) {
			t.Errorf("%s: %+v, want %+v", what, one, want)
		}
	}
	if up := of(found, "upstream"); len(up) != 2 || up[0].Level != OK || up[1].Level != Fault {
		t.Errorf("upstreams: %+v", up)
	}
	c.StateDir = filepath.Join(dir, "new", "state")
	if one := of(Examine(t.Context(), Options{Config: c, Envoy: "/none"}), "state_dir"); one[0].Level != OK || !strings.Contains(one[0].Says, "can be made") {
		t.Errorf("%+v", one)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("doctor has made a directory")
	}
	if err := os.Symlink("new", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c.StateDir = range []string{filepath.Join(dir, "link"), filepath.Join(dir, "link", "state")} {
		if one := of(Examine(t.Context(), Options{Config: c, Envoy: "/none"}), "state_dir"); one[0].Level != Fault || !strings.Contains(one[0].Says, "does not exist") {
			t.Errorf("a link to nowhere: %+v", one)
		}
	}
}

// TestExaminePlaceOfEnvoy: an Envoy that is to be fetched needs a folder.
func TestExaminePlaceOfEnvoy(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("SLUICE_ENVOY", "")
	for tools, want := range map[string]Level{"new": Warning, "file/tools": Fault} {
		t.Setenv("SLUICE_TOOLS", filepath.Join(dir, tools))
		e := &examination{}
		e.envoy(t.Context())
		if len(e.found) != 1 || e.found[0].Level != want || (want == Fault) != strings.Contains(e.found[0].Hint, "$SLUICE_TOOLS") {
			t.Errorf("%s: %+v, want %s", tools, e.found, want)
		}
	}
}

// What the start of a gateway refuses is a fault: a directory that others can write, and an address
// for peers that another program has.
func TestExamineWhatAStartRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	e := &examination{Options: Options{Config: &config.Config{Admin: "127.0.0.1:0", Peers: taken.Addr().String()}}}
	e.directory("state_dir", dir)
	e.ports(t.Context())
	for what, want := range map[string]string{"state_dir": "has mode 0777", "peers": "in use by another program"} {
		if one := of(e.found, what); len(one) != 1 || one[0].Level != Fault || !strings.Contains(one[0].Says, want) {
			t.Errorf("%s: %+v, want %s", what, one, want)
		}
	}
}

// TestExamineRoom: a replica that this machine has no room for would wait for ever.
func TestExamineRoom(t *testing.T) {
	t.Parallel()
	model := func(name string, r config.Resources) config.Model {
		return config.Model{Name: name, Launcher: engines.Local, Resources: &r}
	}
	node := engines.Node{CPUs: 4, Memory: 8 << 30, GPUs: make([]engines.GPU, 2)}
	c := &config.Config{Models: []config.Model{
		model("fits", config.Resources{CPU: 4, Memory: 8 << 30, GPU: 2}), model("cpu", config.Resources{CPU: 4.5}),
		model("memory", config.Resources{Memory: 9 << 30}), model("gpu", config.Resources{GPU: 4}),
		{Name: "elsewhere", Launcher: engines.Kubernetes, Resources: &config.Resources{GPU: 8}},
	}}
	e := &examination{Options: Options{Config: c}}
	e.room(node)
	for what, want := range map[string]string{
		"model cpu": "a replica needs 4.5 processors, and this machine has 4", "model memory": "a replica needs 9.0 GiB of memory, and this machine has 8.0 GiB",
		"model gpu": "a replica needs 4 GPUs, and this machine has 2",
	} {
		if one := of(e.found, what); len(one) != 1 || one[0].Level != Fault || one[0].Says != want {
			t.Errorf("%s: %+v, want %s", what, one, want)
		}
	}
	if len(e.found) != 3 {
		t.Errorf("%+v, want no other", e.found)
	}
	c.Control.Nodes = "0.0.0.0:9443"
	e.found = nil
	if e.room(node); len(e.found) > 0 {
		t.Errorf("another node may have room, and doctor says %+v", e.found)
	}
}

// TestExamineRedisSaysWhatToDo: the advice about a Redis fits its answer.
func TestExamineRedisSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"correct the user and the password":  fmt.Errorf("%w: WRONGPASS invalid username-password pair", redis.ErrRefused),
		"name the master in `redis`":         fmt.Errorf("%w: READONLY You can't write against a read only replica", redis.ErrRefused),
		"or is just moved; until then":       fmt.Errorf("%w: ERR Script attempted to access a non local key in a cluster node", redis.ErrRefused),
		"rediss:// if Redis speaks TLS":      context.DeadlineExceeded,
		"start Redis, or correct the URL: r": io.EOF,
		"start Redis, or correct the URL; u": errors.New("connection refused"),
		"look at the certificate of Redis":   &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"correct the number of the database": fmt.Errorf("%w: ERR DB index is out of range", redis.ErrRefused),
	} {
		e := &examination{}
		e.redisFault(err)
		if len(e.found) != 1 || !strings.Contains(e.found[0].Hint, want) || strings.Contains(e.found[0].Says, "context deadline") {
			t.Errorf("%v: %+v", err, e.found)
		}
	}
}

// TestExamineSlowRedis: a Redis that answers later than a request waits is worth a warning.
func TestExamineSlowRedis(t *testing.T) {
	t.Parallel()
	const pause = 100 * time.Millisecond
	url := redistest.Slow(redistest.Start(t), pause)
	for timeout, want := range map[time.Duration]Level{50 * time.Millisecond: Warning, testutil.Patience: OK} {
		e := &examination{Options: Options{Config: &config.Config{Redis: &config.Redis{URL: url}, RedisTimeout: timeout}}}
		e.redis(t.Context())
		if len(e.found) != 1 || e.found[0].Level != want || (want == Warning) != strings.Contains(e.found[0].Hint, "redis_timeout") {
			t.Fatalf("redis_timeout %v: %+v", timeout, e.found)
		}
		var took float64
		if _, err := fmt.Sscanf(e.found[0].Says, "answers after %f ms", &took); err != nil || took < pause.Seconds()*1000 {
			t.Errorf("redis_timeout %v: %+v", timeout, e.found)
		}
	}
}

// TestExamineRedisThatCannotBeUsed: a Redis that answers and does not keep what gateways write.
func TestExamineRedisThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	single := func(setup ...[]any) string {
		server := redistest.Start(t)
		for _, command := range setup {
			if err := server.Client().Do(ctx, command...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return redistest.URL(server)
	}
	withUser := func(rules []any, setup ...[]any) string {
		url := single(append(setup, append([]any{"ACL", "SETUSER", "sluice", "on", ">secret"}, rules...))...)
		return strings.Replace(url, "redis://", "redis://sluice:secret@", 1)
	}
	type line = []any
	everyChannel := line{"CONFIG", "SET", "acl-pubsub-default", "allchannels"} // the default of Redis 6.2
	evicts := line{"CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru"}
	for name, c := range map[string]struct {
		url        string
		want       Level
		says, hint string
	}{
		"as it is":            {single(), OK, "answers after", ""},
		"rules of the docs":   {withUser(rulesOfTheDocs(t)), OK, "answers after", ""},
		"the same at 6.2":     {withUser(rulesOfTheDocs(t), everyChannel), OK, "answers after", ""},
		"the same, evicting":  {withUser(rulesOfTheDocs(t), evicts), Warning, "maxmemory-policy is allkeys-lru", "noeviction"},
		"memory without end":  {single(line{"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"}), OK, "answers after", ""},
		"it drops keys":       {single(evicts), Warning, "maxmemory-policy is allkeys-lru", "noeviction"},
		"its memory is full":  {single(line{"CONFIG", "SET", "maxmemory", "1"}), Fault, "OOM", "maxmemory"},
		"a replica":           {single(line{"REPLICAOF", "127.0.0.1", "1"}), Fault, "READONLY", "name the master"},
		"a user who reads":    {withUser(line{"~*", "+@read"}), Fault, "NOPERM", "ACL LOG"},
		"who does not write":  {withUser(line{"~*", "&*", "+@all", "-set"}), Fault, "it refuses what gateways write", "ACL LOG"},
		"who hears nothing":   {withUser(line{"~*", "&*", "+@all", "-subscribe"}), Fault, "NOPERM", "ACL LOG"},
		"who has no channel":  {withUser(line{"~*", "resetchannels", "+@all"}), Fault, "NOPERM", "ACL LOG"},
		"one of a cluster":    {redistest.URL(redistest.Cluster(t)[0]), Fault, "MOVED", "name several of its nodes"},
		"nobody listens here": {"redis://127.0.0.1:1", Fault, "refused", "start Redis"},
	} {
		e := &examination{Options: Options{Config: &config.Config{Redis: &config.Redis{URL: c.url}, RedisTimeout: 10 * time.Second}}}
		e.redis(ctx)
		if len(e.found) != 1 || e.found[0].Level != c.want || !strings.Contains(e.found[0].Says, c.says) || !strings.Contains(e.found[0].Hint, c.hint) {
			t.Errorf("%s: %+v", name, e.found)
		}
	}
}

// rulesOfTheDocs returns what docs/several-gateways.md lets the user of Redis do.
func rulesOfTheDocs(t *testing.T) []any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testutil.Root(), "docs/several-gateways.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "ACL SETUSER sluice on >PASSWORD ")
	rules, _, _ := strings.Cut(rest, "\n")
	var all []any
	for _, rule := range strings.Fields(rules) {
		all = append(all, rule)
	}
	return all
}

// of returns the findings about one thing.
func of(all []Finding, what string) []Finding {
	var some []Finding
	for _, f := range all {
		if f.What == what {
			some = append(some, f)
		}
	}
	return some
}

// TestExamineSentinels: the doctor tells which sentinels do not know the master, and which files of
// redis cannot be used.
func TestExamineSentinels(t *testing.T) {
	t.Parallel()
	g := redistest.Sentinels(t, nil)
	g.Sentinels[1].Kill()
	known := config.Sentinel{Master: redistest.MasterName, Username: redistest.SentinelUser, Password: redistest.SentinelPassword}
	wrong := known
	wrong.Password = "wrong"
	for name, c := range map[string]struct {
		redis      config.Redis
		want       []Level
		says, hint string
	}{
		"one is dead":    {config.Redis{URL: g.URL(), Sentinel: &known}, []Level{Warning, OK}, "sentinel " + g.Sentinels[1].Addr, "other sentinels serve"},
		"wrong password": {config.Redis{URL: g.URL(), Sentinel: &wrong}, []Level{Fault}, "WRONGPASS", "password of sentinel"},
		"no such file":   {config.Redis{URL: "rediss://h", CA: "/none/ca.crt"}, []Level{Fault}, "/none/ca.crt", "ca of redis"},
	} {
		e := &examination{Options: Options{Config: &config.Config{Redis: &c.redis, RedisTimeout: 10 * time.Second}}}
		e.redis(t.Context())
		var levels []Level
		for _, f := range e.found {
			levels = append(levels, f.Level)
		}
		if !slices.Equal(levels, c.want) || !strings.Contains(e.found[0].Says, c.says) || !strings.Contains(e.found[0].Hint, c.hint) {
			t.Errorf("%s: %+v", name, e.found)
		}
	}
}
