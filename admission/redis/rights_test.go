package redis

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestRightsOfAUser: a user who may not publish never shares, instead of sharing and losing Redis
// again each second. The log tells of one who may not subscribe.
func TestRightsOfAUser(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client()
	rights := func(rules ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "sluice"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	rights("on", ">secret", "~*", "&*", "+@all", "-publish", "-subscribe")
	core, logs := observer.New(zap.InfoLevel)
	s, err := New(Config{Server: Server{URL: "redis://sluice:secret@" + server.Addr}, Timeout: 2 * time.Second, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, s)
	eventually(t, "it has tried several times", func() bool { return s.Status().Errors > 5 })
	if logs.FilterMessageSnippet("redis connected").Len() > 0 || Remedy(s.Status().LastError) == "" {
		t.Errorf("%+v, %v", s.Status(), logs.All())
	}
	rights("+publish")
	eventually(t, "it shares", func() bool { return s.Status().Up })
	if logs.FilterMessageSnippet("refuses a subscription").Len() != 1 {
		t.Errorf("log: %v", logs.All())
	}
}
