package redis

import (
	"context"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// NewClient returns a Redis client for packages that keep other things in the same Redis. server
// and timeout are as in Config. The client repeats no call by itself. It connects when it is used;
// the caller closes it. The error contains no secret.
func NewClient(server Server, timeout time.Duration) (client.UniversalClient, error) {
	options, err := server.options()
	if err != nil {
		return nil, err
	}
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	setTimeouts(options, timeout)
	return connect(options), nil
}

// stateInterval is how old the client's knowledge of a cluster may be: which server has which keys.
// The default of the library is a minute. For so long a gateway would ask a master that has died,
// although a replica has taken its place.
const stateInterval = time.Second

// connect returns a client with these options. It connects when it is used.
func connect(o *client.UniversalOptions) client.UniversalClient {
	// What the library would print to stderr is also returned as an error.
	client.SetLogger(&logging.VoidLogger{})
	if !o.IsClusterMode {
		return client.NewUniversalClient(o) // one that asks the sentinels if there is a MasterName
	}
	cluster := o.Cluster()
	cluster.ClusterStateReloadInterval = stateInterval
	cluster.NewClient = func(o *client.Options) *client.Client {
		c := client.NewClient(o)
		c.AddHook(stayingScripts{})
		return c
	}
	return client.NewClusterClient(cluster)
}

// stayingScripts is a hook of the clients of a cluster's servers. While a slot moves, a server asks
// the caller to go to the new server (ASK) if the first key of a script is there already. There all
// keys that have not moved yet look as if they did not exist. A script would begin the state anew,
// and these keys could not move any more. So a script fails until the whole slot has moved.
type stayingScripts struct{}

// slotMoves is the error of a script whose slot moves. Redis has answered, as with other errors of
// Redis.
type slotMoves string

func (e slotMoves) Error() string {
	return "the slot of the keys moves to another server: " + string(e)
}
func (slotMoves) RedisError() {}

func (stayingScripts) DialHook(next client.DialHook) client.DialHook { return next }

func (stayingScripts) ProcessHook(next client.ProcessHook) client.ProcessHook {
	return func(ctx context.Context, cmd client.Cmder) error {
		err := next(ctx, cmd)
		if err != nil && strings.HasPrefix(err.Error(), "ASK ") && strings.HasPrefix(cmd.Name(), "eval") {
			return slotMoves(err.Error())
		}
		return err
	}
}

func (stayingScripts) ProcessPipelineHook(next client.ProcessPipelineHook) client.ProcessPipelineHook {
	return next
}
