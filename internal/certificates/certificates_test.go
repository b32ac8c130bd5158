package certificates

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

func files(t *testing.T, a *testutil.Authority) (Files, string) {
	t.Helper()
	dir := t.TempDir()
	a.Issue(t, dir, "server", "gateway.example")
	a.Write(t, filepath.Join(dir, "ca.crt"))
	return Files{Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key"), CA: filepath.Join(dir, "ca.crt")}, dir
}

func TestU16_FilesAreReadAgainOnlyWhenTheyAreWhole(t *testing.T) {
	t.Parallel()
	f, dir := files(t, testutil.NewAuthority(t, "authority"))
	c, err := Follow(f, "listen", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	before := c.Current(time.Now())
	later := func() *Content { return c.Current(c.checked.Add(Recheck)) }
	if later() != before {
		t.Error("read again without a change")
	}
	next := testutil.NewAuthority(t, "next")
	next.Issue(t, dir, "server", "gateway.example")
	if err := os.Remove(f.Key); err != nil {
		t.Fatal(err)
	}
	if later() != before || c.Fault() == nil {
		t.Errorf("half a certificate is in force, fault %v", c.Fault())
	}
	next.Issue(t, dir, "server", "gateway.example")
	if c.Current(c.checked.Add(Recheck/2)) != before {
		t.Error("looked at again too soon")
	}
	now := later()
	if now == before || later() != now || c.Fault() != nil {
		t.Fatalf("not read again once, fault %v", c.Fault())
	}
	if now.Cert == before.Cert || now.Key == before.Key {
		t.Error("the texts are those of before")
	}
}

func TestO12_FilesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	a := testutil.NewAuthority(t, "authority")
	good, _ := files(t, a)
	other, _ := files(t, a)
	for name, f := range map[string]Files{
		"no file":               {Cert: "none", Key: good.Key},
		"the key of another":    {Cert: good.Cert, Key: other.Key},
		"the key as a CA":       {Cert: good.Cert, Key: good.Key, CA: good.Key},
		"the certificate twice": {Cert: good.Cert, Key: good.Cert},
	} {
		if _, err := Follow(f, "listen", zap.NewNop()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c, err := Read(Files{Cert: good.Cert, Key: good.Key})
	if err != nil || c.CAs != nil || c.Pair.Leaf == nil {
		t.Errorf("without client_ca: %v, %v", c, err)
	}
}
