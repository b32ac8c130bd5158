package weights

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestU14_Link: a link is relative, so that it holds in another mount, and replaces an earlier one.
// A part of a split file keeps its name.
func TestU14_Link(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, commit := range []string{"a", "b"} {
		target := filepath.Join(dir, "models--o--m", "snapshots", commit)
		if err := os.MkdirAll(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := Link(filepath.Join(dir, "sluice", "key"), target); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.Readlink(filepath.Join(dir, "sluice", "key")); err != nil || got != filepath.Join("..", "models--o--m", "snapshots", "b") {
		t.Errorf("the link is %q, %v", got, err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "sluice")); err != nil || len(entries) != 1 {
		t.Errorf("left over: %v, %v", entries, err)
	}
	if err := Link(filepath.Join(dir, "sluice", "split.gguf"), "model-00001-of-00003.gguf"); err == nil {
		t.Error("a part of a split file got another name")
	}
}

// TestU14_LinkAfterAKilledProcess: a process of the same id was killed while it made the link, as
// in a container that is started again.
func TestU14_LinkAfterAKilledProcess(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "key")
	if err := os.Symlink("old", fmt.Sprintf("%s.%d", link, os.Getpid())); err != nil {
		t.Fatal(err)
	}
	if err := Link(link, filepath.Join(filepath.Dir(link), "new")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.Readlink(link); err != nil || got != "new" {
		t.Errorf("the link is %q, %v", got, err)
	}
}
