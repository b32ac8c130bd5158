package gateway

import (
	"time"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/condition"
)

// makeRedis reads the certificates for Redis, and keeps how the parts of the gateway connect to it.
func (g *Gateway) makeRedis() error {
	c := g.options.Config.Redis
	if c == nil {
		return nil
	}
	g.redis = &redis.Server{URL: c.URL, Sentinel: (*redis.Sentinel)(c.Sentinel), ServerName: c.ServerName}
	return g.redis.Follow(c.Files(), g.log)
}

// redisCertificateConditions tells whether the files of redis can be used, and for how long.
func (g *Gateway) redisCertificateConditions() []condition.Condition {
	if g.redis == nil || g.redis.Certificates == nil {
		return nil
	}
	now := time.Now()
	leaf := g.redis.Certificates.Current(now).Pair.Leaf
	shown := shownCertificate{subject: "redis", files: "redis", refusing: "Redis refuses it"}
	if leaf != nil {
		shown.end = leaf.NotAfter
	}
	return shown.conditions(g.redis.Certificates.Fault(), now)
}
