package redis

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"
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
	if logs.FilterMessageSnippet("Redis connected").Len() > 0 || Remedy(s.Status().LastError) == "" {
		t.Errorf("%+v, %v", s.Status(), logs.All())
	}
	rights("+publish")
	eventually(t, "it shares", func() bool { return s.Status().Up })
	eventually(t, "the log tells once of the subscription", func() bool { return logs.FilterMessageSnippet("refuses a subscription").Len() == 1 })
}

// TestAPasswordThatIsNotGiven: what Redis answers to a gateway without a password is known to be
// about the password, so the operator does not read that Redis may be slow.
func TestAPasswordThatIsNotGiven(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if err := server.Client().ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}})
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, s)
	eventually(t, "it has tried", func() bool { return s.Status().Errors > 0 })
	if answer := s.Status().LastError; !IsAboutPassword(answer) {
		t.Error(answer)
	}
}

// TestASubscriptionWithoutAnAnswer: a Redis that falls silent has refused nothing.
func TestASubscriptionWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := client.NewUniversalClient(&client.UniversalOptions{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, server.Addr)
		return withoutSubscriptions{conn}, err
	}})
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := markRefusal(hear(ctx, c)); err == nil || errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

// withoutSubscriptions is a connection to a Redis that gets no subscription.
type withoutSubscriptions struct{ net.Conn }

func (c withoutSubscriptions) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("subscribe")) {
		return len(p), nil
	}
	return c.Conn.Write(p)
}
