package config

import (
	"os"
	"path/filepath"
	"testing"
)

// Fields of the command line win over those of the file, are checked as those, and stay when the
// file is read again.
func TestO8_WithFields(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("listen: 127.0.0.1:1\nauth: {mode: none}\n")
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	next, err := c.WithFields(map[string]string{"listen": "127.0.0.1:2", "admin": "127.0.0.1:3"})
	if err != nil || next.Listen != "127.0.0.1:2" || next.Admin != "127.0.0.1:3" || next.File != file || c.Listen != "127.0.0.1:1" {
		t.Fatalf("%v: %+v", err, next)
	}
	if _, err := c.WithFields(map[string]string{"listen": "0.0.0.0:2"}); err == nil {
		t.Error("an address off loopback without keys is accepted")
	}
	write("auth: {mode: none}\nadmin: 0.0.0.0:3\n")
	if _, err := Load(file); err == nil {
		t.Error("addresses off loopback without keys are accepted")
	}
	if _, err := LoadWithFields(file, map[string]string{"listen": "127.0.0.1:2", "admin": "127.0.0.1:3"}); err != nil {
		t.Errorf("addresses of the file that have no effect: %v", err)
	}
	w := NewWatcher(WatcherConfig{Current: next})
	write("listen: 127.0.0.1:1\nauth: {mode: none}\ndrain_timeout: 7s\n")
	if err := w.Reload(false); err != nil || w.Current().Listen != "127.0.0.1:2" || len(w.Status().NeedsRestart) > 1 {
		t.Errorf("after a reload: %v, %s, %v", err, w.Current().Listen, w.Status().NeedsRestart)
	}
}
