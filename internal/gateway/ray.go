package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/ray"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
)

// makeRay makes the launcher of jobs on Ray. With a Redis (server is not nil), gateways of the same
// ray.name share it.
func (l *launchers) makeRay(c *config.Config, server *redis.Server) error {
	section := ray.Config{
		Address: c.Ray.Address, Token: c.Ray.Token, Name: c.Ray.Name, Identity: rayIdentity(c.StateDir),
		Ports: ray.Ports{First: c.Ray.FirstPort, Last: c.Ray.LastPort}, Fleet: l.fleet, InFlight: l.dispatcher.Load, Load: l.reportedLoad,
		OnFound: l.keepFound, OnDemand: l.scaler.ReportDemand, OnHealthy: l.dispatcher.EndSuspension, Log: l.log,
	}
	if server != nil {
		client, err := redis.NewClient(*server, c.RedisTimeout)
		if err != nil {
			return err
		}
		section.Redis, l.rayRedis = client, client
	}
	l.ray = ray.New(section)
	return nil
}

// rayIdentity returns a name for the gateway of this state directory on this machine. It is the
// same after each restart.
func rayIdentity(stateDir string) string {
	host, _ := os.Hostname() // an error is ignored: the directory tells apart the gateways of a machine
	sum := sha256.Sum256([]byte(host + "\x00" + stateDir))
	return host + "-" + hex.EncodeToString(sum[:4])
}

// watchRay follows the jobs of Ray until ctx ends. It starts before the requests of an earlier run
// are counted, because some of them may be at these jobs.
func (l *launchers) watchRay(ctx context.Context, group *errgroup.Group) {
	if l.ray != nil {
		group.Go(func() error {
			err := l.ray.Run(ctx)
			if l.rayRedis != nil {
				err = errors.Join(err, l.rayRedis.Close())
			}
			return err
		})
	}
}

// awaitRay waits until the replicas on Ray are known, or ctx ends.
func (l *launchers) awaitRay(ctx context.Context) {
	if l.ray != nil {
		awaitUntil(ctx, firstReportInterval, l.ray.HasPublished)
	}
}

// rayModels are the models that are launched on Ray.
func rayModels(c *config.Config, desired func(model string) int) []ray.Model {
	var models []ray.Model
	for _, m := range c.Models {
		if m.Launcher != engines.Ray {
			continue
		}
		version, launch := c.Launch(m)
		launch.Sluice = "sluice" // the name of the program on Ray's nodes
		models = append(models, ray.Model{
			Model:        describeLaunched(m, desired(m.Name)),
			Version:      version,
			Launch:       launch,
			Env:          maps.Clone(m.Env),
			Resources:    needs(m),
			Cluster:      m.Cluster,
			StartTimeout: m.ColdStart.LoadTimeout,
			DrainTimeout: m.Stream.MaxDuration,
		})
	}
	return models
}

// rayConditions tells whether Ray and Redis answer, and whether a gateway that does not share uses
// the same installation.
func (g *Gateway) rayConditions() []condition.Condition {
	if g.launchers.ray == nil {
		return nil
	}
	var all []condition.Condition
	s := g.launchers.ray.Status()
	if s.Fault != "" {
		all = append(all, condition.Fault(condition.RayFault, "", "NoAnswer",
			fmt.Sprintf("Ray does not answer: %s. Replicas that answer stay, and none is started or stopped.", sentence(s.Fault))))
	}
	if s.Refused != "" {
		all = append(all, condition.Fault(condition.RayFault, "jobs", "CallsRefused", fmt.Sprintf(
			"Ray answers, and refuses to start and end jobs: %s. The calls are repeated. Replicas that answer stay. Restart Ray's head if this lasts.",
			sentence(s.Refused))))
	}
	if s.Rival != "" {
		all = append(all, condition.Fault(condition.RayFault, s.Rival, "AnotherGateway", fmt.Sprintf(
			"Gateway %s starts jobs of the same ray.name and does not share them, so this gateway starts and stops none. Give both the same redis, "+
				"or each a ray.name of its own. Or stop one of them and restart the other.", s.Rival)))
	}
	if s.Redis != "" {
		all = append(all, condition.Fault(condition.RayFault, "redis", "NoLease", fmt.Sprintf(
			"Redis does not answer: %s. Without it the gateways of one ray.name cannot agree which of them writes, so this gateway starts and stops "+
				"no job on Ray. Replicas that answer stay.", sentence(s.Redis))))
	}
	return all
}
