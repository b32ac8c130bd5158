package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission/redis"
)

// redis looks whether Redis answers, in time, and takes and keeps what gateways write.
func (e *examination) redis(ctx context.Context) {
	if e.Config.Redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	c := e.Config.Redis
	server := redis.Server{URL: c.URL, Sentinel: (*redis.Sentinel)(c.Sentinel), ServerName: c.ServerName}
	if err := server.Follow(c.Files(), zap.NewNop()); err != nil {
		e.fault("redis", err.Error(), "correct cert, key and ca of redis")
		return
	}
	pong, err := redis.Ping(ctx, server)
	if err != nil {
		e.redisFault(err)
		return
	}
	says := fmt.Sprintf("answers after %.1f ms", pong.Took.Seconds()*1000)
	limit := e.Config.RedisTimeout
	for _, silent := range pong.Silent {
		e.warn("redis", silent.Error(), "start it, connect it with the others, or correct url and sentinel of redis; the other sentinels serve until then")
	}
	switch {
	case pong.Took > limit:
		e.warn("redis", says, fmt.Sprintf("set redis_timeout (%v) to more, or each gateway limits alone", limit))
	case pong.Evicts != "":
		e.warn("redis", "drops keys when its memory is full: maxmemory-policy is "+pong.Evicts,
			"set maxmemory-policy to noeviction, or limits may be exceeded, and usage and keys of run time may be lost")
	default:
		e.ok("redis", says)
	}
}

// redisFault says why gateways cannot use Redis. A Redis that refuses to be written to is running.
func (e *examination) redisFault(err error) {
	const otherScheme = "start Redis, or correct the URL: rediss:// if Redis speaks TLS, and redis:// if it does not; " +
		"until it answers, each gateway limits alone"
	says, hint := err.Error(), "start Redis, or correct the URL; until it answers, each gateway limits alone"
	switch {
	case errors.Is(err, redis.ErrSentinels):
		hint = "start the sentinels, or correct their addresses in url, and master, username and password of sentinel; " +
			"until one tells the master, each gateway limits alone"
	case redis.IsAboutPassword(says):
		hint = "correct the user and the password in the URL; until then, each gateway limits alone"
	case errors.Is(err, redis.ErrRefused), redis.Remedy(says) != "":
		remedy := cmp.Or(redis.Remedy(says), "Name a Redis to which this user may write.")
		hint = strings.ToLower(remedy[:1]) + strings.TrimSuffix(remedy[1:], ".") + "; until then, each gateway limits alone"
	case errors.Is(err, context.DeadlineExceeded):
		says, hint = fmt.Sprintf("does not answer within %v", tryTimeout), otherScheme
	case errors.Is(err, io.EOF):
		hint = otherScheme
	}
	e.fault("redis", says, hint)
}
