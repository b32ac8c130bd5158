package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/ray"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
)

// makeRay makes the launcher of jobs on Ray.
func (l *launchers) makeRay(c config.Ray, stateDir string) {
	l.ray = ray.New(ray.Config{
		Address: c.Address, Token: c.Token, Name: c.Name, Identity: rayIdentity(stateDir), Ports: ray.Ports{First: c.FirstPort, Last: c.LastPort},
		Fleet: l.fleet, InFlight: l.dispatcher.Load, OnFound: l.keepFound, OnHealthy: l.dispatcher.EndSuspension, Log: l.log,
	})
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
		group.Go(func() error { return l.ray.Run(ctx) })
	}
}

// awaitRay waits until the replicas on Ray are known, or ctx ends.
func (l *launchers) awaitRay(ctx context.Context) {
	for l.ray != nil && !l.ray.HasPublished() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
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

// rayConditions tells whether Ray answers, and whether another gateway uses the same installation.
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
	if s.Rival != "" {
		all = append(all, condition.Fault(condition.RayFault, s.Rival, "AnotherGateway", fmt.Sprintf(
			"Gateway %s starts jobs of the same ray.name, so this gateway starts and stops none. Give each gateway a ray.name of its own, "+
				"or stop one of them and restart the other.", s.Rival)))
	}
	return all
}
