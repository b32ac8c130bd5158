package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"
)

// Pong is what Ping has found out about a Redis.
type Pong struct {
	// Took is how long the fastest of three calls took on an open connection.
	Took time.Duration
	// Evicts is the policy by which Redis drops keys when its memory is full. "" means that Redis
	// drops none, or that it does not tell its policy to this user.
	Evicts string
	// Silent are the sentinels that do not tell the master, or another one than most, with the
	// reasons. Others do.
	Silent []error
}

// ErrSentinels means that no sentinel tells where the master is.
var ErrSentinels = errors.New("no sentinel tells where the master is")

// ErrRefused means that a Redis answers, but does not take what gateways write.
var ErrRefused = errors.New("it refuses what gateways write")

// IsAboutPassword reports whether an error says that Redis wants another user or another password.
// To a long call of a client without a password, Redis 7 answers that it is "unauthenticated".
func IsAboutPassword(reason string) bool {
	return slices.ContainsFunc([]string{"WRONGPASS", "NOAUTH", "unauthenticated"}, func(word string) bool { return strings.Contains(reason, word) })
}

// pingKeys are one key of each part of the state that gateways share: the limits, the usage, and
// the keys of run time. In a cluster each may be at another server.
var pingKeys = []string{"{" + defaultDeployment + "}:ping", "{sluice:usage}:ping", "sluice:keys:ping"}

// pingScript writes one key, as all scripts of gateways do. A replica of Redis, a Redis whose
// memory is full, and a user without the rights refuse it, although they answer to other calls.
var pingScript = client.NewScript(`return redis.call('SET', KEYS[1], '1', 'PX', 1000)`)

// pingChannel is a channel by which gateways could tell each other something.
const pingChannel = "{" + defaultDeployment + "}:ping"

// remedies are what an operator does about answers of Redis that have one of these words.
var remedies = []struct {
	words  []string
	remedy string
}{
	{[]string{"READONLY", "NOREPLICAS", "MASTERDOWN"}, "Name the master in `redis`, or its sentinels, and look whether it has its replicas."},
	{[]string{"OOM "}, "Give Redis more memory (`maxmemory`), or remove what others keep there."},
	{[]string{"LOADING"}, "Wait until Redis has read its data from its disk."},
	{[]string{"MISCONF"}, "Look at the log of Redis: it cannot write to its disk."},
	{[]string{"MOVED", "CROSSSLOT"}, "Redis is a cluster: name several of its nodes in `redis`, with commas between them. One name may stand there twice."},
	{[]string{"CLUSTERDOWN", "TRYAGAIN", "ASK ", "non local key"}, "Look at `CLUSTER INFO` of Redis: a part of the cluster has no master, or is just moved."},
	{[]string{"NOPERM", "ACL failure", "The user executing the script"},
		"Give the user of `redis` the rights that docs/several-gateways.md lists. `ACL LOG` of Redis names what it refuses."},
	{[]string{"lost its state"}, "If this comes again, find out who empties Redis, and set its `maxmemory-policy` to noeviction."},
	{[]string{"x509:", "tls: "}, "Look at the certificate of Redis, and at `ca`, `cert`, `key` and `server_name` of `redis`."},
	{[]string{"DB index"}, "Correct the number of the database in the URL of `redis`: Redis has no such database."},
	{[]string{"max number of clients"}, "Raise `maxclients` of Redis, or find out who else connects to it."},
	{[]string{"WRONGTYPE"}, "Another program has written to a key of the gateways: find it, give it another database, and remove its key."},
}

// Remedy returns what an operator does about an answer of Redis, or about a connection to it. ""
// means that nothing special is known. IsAboutPassword finds those about a password.
func Remedy(answer string) string {
	for _, r := range remedies {
		if slices.ContainsFunc(r.words, func(word string) bool { return strings.Contains(answer, word) }) {
			return r.remedy
		}
	}
	return ""
}

// Ping asks a Redis and all of its sentinels for signs of life, and whether the Redis takes what
// gateways write. The error says why not; errors.Is finds ErrSentinels in it, or ErrRefused in that
// of a Redis that answers. What Ping writes expires after a second.
func Ping(ctx context.Context, server Server) (Pong, error) {
	o, err := server.options()
	if err != nil {
		return Pong{}, err
	}
	setTimeouts(o, time.Second)
	var silent []error
	if o.MasterName != "" {
		if o.Addrs, silent = usableSentinels(ctx, o); len(o.Addrs) == 0 {
			return Pong{}, fmt.Errorf("%w: %w", ErrSentinels, errors.Join(silent...))
		}
	}
	c := connect(o)
	defer c.Close() //nolint:errcheck // what was written expires by itself
	for _, key := range pingKeys {
		if err := pingScript.Run(ctx, c, []string{key}).Err(); err != nil {
			return Pong{}, markRefusal(err)
		}
	}
	if err := hear(ctx, c); err != nil {
		return Pong{}, markRefusal(err)
	}
	p := Pong{Evicts: evictionPolicy(ctx, c), Silent: silent}
	const calls = 3
	for i := range calls {
		began := time.Now()
		if err := c.Exists(ctx, pingKeys[0]).Err(); err != nil { // one key is at one server of a cluster
			return Pong{}, err
		}
		if this := time.Since(began); i == 0 || this < p.Took {
			p.Took = this
		}
	}
	return p, nil
}

// markRefusal wraps ErrRefused around an error that Redis has answered.
func markRefusal(err error) error {
	var answer client.Error
	if errors.As(err, &answer) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// hear returns why gateways cannot tell each other something.
func hear(ctx context.Context, c client.UniversalClient) error {
	subscription := c.Subscribe(ctx, pingChannel)
	defer subscription.Close() //nolint:errcheck // nothing is heard
	if _, err := subscription.Receive(ctx); err != nil {
		return err
	}
	return c.Publish(ctx, pingChannel, "").Err()
}

// evictionPolicy returns Pong.Evicts.
func evictionPolicy(ctx context.Context, c client.UniversalClient) string {
	text, err := c.Info(ctx, "memory").Result()
	if err != nil {
		return "" // the user may not ask
	}
	values := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		values[name] = value
	}
	if values["maxmemory"] == "0" || values["maxmemory_policy"] == "noeviction" {
		return ""
	}
	return values["maxmemory_policy"]
}
