package redis

import (
	"context"
	"time"

	client "github.com/redis/go-redis/v9"
)

// Ping asks the Redis of a URL for a sign of life. The error says why there is none.
func Ping(ctx context.Context, url string) error {
	o, err := parseURL(url)
	if err != nil {
		return err
	}
	setTimeouts(o, time.Second)
	c := client.NewUniversalClient(o)
	defer c.Close() //nolint:errcheck // nothing was written
	return c.Ping(ctx).Err()
}
