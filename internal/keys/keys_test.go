package keys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// backends returns a function for each kind of backend that opens the same keys again.
func backends(t *testing.T) map[string]func() Backend {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	url := redistest.URL(redistest.Start(t))
	return map[string]func() Backend{
		"file": func() Backend { return File(path) },
		"redis": func() Backend {
			client, err := redis.NewClient(url, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			return Redis(client)
		},
	}
}

func TestB4_KeysAreStoredAndSharedAndRevoked(t *testing.T) {
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			var mine, others []Key
			a := New(open(), func(all []Key) { mine = all }, zap.NewNop())
			b := New(open(), func(all []Key) { others = all }, zap.NewNop())
			now := time.Now().UTC().Truncate(time.Second)
			for i, id := range []string{"one", "two"} {
				if err := a.Add(t.Context(), Key{ID: id, Hash: "sha256:" + id, Tenant: "acme", Created: now.Add(time.Duration(i) * time.Second)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Read(t.Context()); err != nil || len(others) != 2 || others[0].ID != "one" || len(mine) != 2 {
				t.Fatalf("%v, %v, %v", mine, others, err)
			}
			if found, err := b.Remove(t.Context(), "one"); !found || err != nil {
				t.Fatal(found, err)
			}
			if found, err := b.Remove(t.Context(), "one"); found || err != nil {
				t.Error("revoked twice", err)
			}
			if err := a.Read(t.Context()); err != nil || len(mine) != 1 || mine[0].ID != "two" {
				t.Errorf("after the revocation: %v, %v", mine, err)
			}
		})
	}
}

func TestB4_ADamagedFileRevokesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	var told []Key
	s := New(File(path), func(all []Key) { told = all }, zap.NewNop())
	if err := s.Add(t.Context(), Key{ID: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Read(t.Context()), s.Add(t.Context(), Key{ID: "two"})); err == nil || len(told) != 1 || len(s.List()) != 1 {
		t.Errorf("%v, %v", told, err)
	}
}
