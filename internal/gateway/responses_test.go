package gateway

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/process"
)

// newKeeper returns the keeper of a process with one replica, which may have so many responses.
func newKeeper(t testing.TB, dir *process.Dir, responses int) *responseKeeper {
	t.Helper()
	fleet, address := engines.NewFleet(), netip.MustParseAddrPort("10.0.0.1:80")
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "m"}},
		Replicas: []engines.Replica{{ID: "m-0", Model: "m", State: engines.Ready, Slots: 8, Address: address, Launcher: engines.Upstream}}})
	d := dispatch.New(dispatch.Config{Fleet: fleet, Admission: admission.New(admission.Config{})})
	d.SetRoutable("model/m", map[string]netip.AddrPort{"m-0": address})
	k := &responseKeeper{log: zap.NewNop(), dir: dir, dispatcher: d}
	for n := range responses {
		k.learn(uint64(n))
	}
	return k
}

// learn has the process learn a response.
func (k *responseKeeper) learn(n uint64) {
	k.dispatcher.Place(dispatch.Placement{Model: "m", Replica: "m-0", Session: (n + 1) * 0x9e3779b97f4a7c15, Owner: 1})
}

// count returns the number of responses that the process knows.
func (k *responseKeeper) count() (n int) {
	for _, r := range k.dispatcher.Responses(time.Time{}) {
		n += len(r.Responses) / 20
	}
	return n
}

// The next process of the state directory knows what the one before has written, and writes
// nothing while nothing changes.
func TestR7_TheFileOfResponses(t *testing.T) {
	t.Parallel()
	dir := claimed(t, t.TempDir())
	path := filepath.Join(dir.Path(), responsesFile)
	first := newKeeper(t, dir, 0)
	first.restore()
	if first.save(); exists(path) {
		t.Error("a process without responses has written a file")
	}
	for n := range uint64(100) {
		first.learn(n)
	}
	if n := len(first.unsaved()); n != 1 {
		t.Errorf("%d replicas have responses that are not in the file", n)
	}
	first.save()
	second := newKeeper(t, dir, 0)
	if second.restore(); second.count() != 100 {
		t.Errorf("%d of 100 responses are known", second.count())
	}
	second.save()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if second.save(); exists(path) {
		t.Error("the file is written although nothing has changed")
	}
	second.learn(100)
	if second.save(); !exists(path) {
		t.Error("the file is not written although a response is new")
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// A file that is damaged or foreign is put aside, and the next one is written in its place.
func TestR7_X13_ADamagedFileOfResponses(t *testing.T) {
	t.Parallel()
	dir := claimed(t, t.TempDir())
	path := filepath.Join(dir.Path(), responsesFile)
	newKeeper(t, dir, 10).save()
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty": "", "cut": string(good[:len(good)/2]), "not JSON": "hello", "another object": `{"a":1}`,
		"another version": `{"version":2,"replicas":[]}`, "a list": "[]",
		"a changed byte": strings.Replace(string(good), `"m-0"`, `"m-1"`, 1), "too long": strings.Repeat(" ", maxResponsesFile) + string(good),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		k := newKeeper(t, dir, 0)
		if k.restore(); k.count() != 0 || exists(path) || !exists(path+".bad") {
			t.Errorf("%s: %d responses are known", name, k.count())
		}
		k.learn(1)
		k.save()
		again := newKeeper(t, dir, 0)
		if again.restore(); again.count() != 1 {
			t.Errorf("%s: the next process knows %d responses", name, again.count())
		}
	}
}

// While the file cannot be written, the process tries again, and a successor is told by it.
func TestR7_X13_AFileOfResponsesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := claimed(t, t.TempDir())
	path := filepath.Join(dir.Path(), responsesFile)
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := newKeeper(t, dir, 10)
	k.save()
	if n := len(k.unsaved()); !k.failed || n != 1 {
		t.Errorf("%d replicas have responses that are not in the file", n)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if k.save(); k.failed || !exists(path) {
		t.Error("the file is not written again")
	}
}

// BenchmarkResponsesFile measures what the file costs with 30,000 responses.
func BenchmarkResponsesFile(b *testing.B) {
	dir, err := process.Open(b.TempDir(), zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	k := newKeeper(b, dir, 30_000)
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			k.changes = 0
			k.save()
		}
		if s, err := os.Stat(filepath.Join(dir.Path(), responsesFile)); err == nil {
			b.ReportMetric(float64(s.Size()), "bytes")
		}
	})
	b.Run("nothing new", func(b *testing.B) {
		for b.Loop() {
			k.save()
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			k.restore()
		}
	})
}
