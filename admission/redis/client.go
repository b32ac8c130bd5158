package redis

import (
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
	return client.NewClusterClient(cluster)
}
