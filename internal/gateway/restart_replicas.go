package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/engines/ray"
	"github.com/sluice-gateway/sluice/internal/loglines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// conflict is the answer to an action that cannot be done now, or not to this object.
func conflict(format string, args ...any) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusConflict, Message: fmt.Sprintf(format, args...)}
}

// notFound is the answer to an action on what does not exist.
func notFound(format string, args ...any) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusNotFound, Message: fmt.Sprintf(format, args...)}
}

// RestartReplica implements admin.Actions.
func (o *operator) RestartReplica(ctx context.Context, r engines.Replica) *openai.Error {
	if err := o.restart(ctx, r); err != nil {
		return conflict("The replica `%s` cannot be restarted: %v.", r.ID, err)
	}
	return nil
}

// restart has the launcher of a replica replace it. The replica finishes its requests first.
func (o *operator) restart(ctx context.Context, r engines.Replica) error {
	var err error
	switch l := o.launchers; r.Launcher {
	case engines.Local:
		if node := l.joinedNode(r.Node); node != nil {
			err = node.Restart(r.ID)
		} else {
			l.local.Restart(r.ID)
		}
	case engines.Kubernetes:
		err = l.kubernetes.Restart(ctx, r.ID)
	case engines.Ray:
		err = l.ray.Restart(r.ID)
	default:
		return fmt.Errorf("someone else runs the server %s", r.Address)
	}
	if _, drained := o.dispatcher.Drained(); err == nil && drained[r.ID] { // its successor serves
		o.DrainReplica(r.ID, false)
	}
	return err
}

// restartStuck restarts a replica that takes requests and has answered none for a long time. It
// does nothing if the replica is not ready, or drained, or run by someone else. Of the gateways
// that share replicas on Ray, only the one that writes restarts them.
func (o *operator) restartStuck(model, id string) {
	all := o.replicasOf(model)
	i := slices.IndexFunc(all, func(r engines.Replica) bool { return r.ID == id })
	if i < 0 || all[i].State != engines.Ready || all[i].Launcher == engines.Upstream || o.IsDrained(id) {
		return
	}
	restart := func(ctx context.Context) {
		switch err := o.restart(ctx, all[i]); {
		case err == nil:
			o.log.Warn("replica has answered no request for a long time, restarting it", zap.String("replica", id))
		case ctx.Err() == nil && !errors.Is(err, ray.ErrNotWriter):
			o.log.Error("replica that answers no request not restarted", zap.String("replica", id), zap.Error(err))
		}
	}
	go func() { // the end of a request calls restartStuck, and does not wait
		select {
		case o.work <- restart:
		case <-time.After(time.Second): // the gateway is being upgraded or stops
		}
	}()
}

// joinedNode returns the node of this name that has joined, or nil.
func (l *launchers) joinedNode(name string) *join.Node {
	if l.joined != nil {
		for _, n := range l.joined.Nodes() {
			if n.Name() == name {
				return n
			}
		}
	}
	return nil
}

// RestartModel implements admin.Actions.
func (o *operator) RestartModel(model string) ([]string, *openai.Error) {
	replicas := o.replicasOf(model)
	if len(replicas) == 0 {
		return nil, conflict("The model `%s` has no replica to restart.", model)
	}
	if l := replicas[0].Launcher; l == engines.Upstream {
		return nil, conflict("The servers of the model `%s` are run by someone else.", model)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.restarting[model] {
		return nil, conflict("The replicas of the model `%s` are being restarted already.", model)
	}
	select {
	case o.work <- func(ctx context.Context) { o.restartAll(ctx, model, replicas) }:
	case <-time.After(time.Second):
		return nil, conflict("The gateway is being upgraded or stops.")
	}
	o.restarting[model] = true
	ids := make([]string, len(replicas))
	for i, r := range replicas {
		ids[i] = r.ID
	}
	return ids, nil
}

// replicasOf returns the replicas of a model, by id.
func (o *operator) replicasOf(model string) []engines.Replica {
	m, ok := o.launchers.fleet.Snapshot().Models[model]
	if !ok {
		return nil
	}
	return slices.Clone(m.Replicas)
}

// restartAll restarts the replicas one after another: the next one only when the model has as many
// ready replicas as before. It gives up when a replica fails.
func (o *operator) restartAll(ctx context.Context, model string, replicas []engines.Replica) {
	defer func() {
		o.mu.Lock()
		delete(o.restarting, model)
		o.mu.Unlock()
	}()
	log := o.log.With(zap.String("model", model))
	for _, r := range replicas {
		ready := readyReplicas(o.replicasOf(model))
		begun := time.Now()
		err := o.restart(ctx, r)
		if err == nil {
			err = o.awaitRestart(ctx, r, begun, ready)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Error("restart of a model stopped, its other replicas go on", zap.String("replica", r.ID), zap.Error(err))
			return
		}
		log.Info("replica restarted", zap.String("replica", r.ID))
	}
}

// awaitRestart waits until a replica is replaced and the model has so many ready replicas.
func (o *operator) awaitRestart(ctx context.Context, r engines.Replica, begun time.Time, ready int) error {
	for {
		_, changed := o.launchers.fleet.Watch()
		now := o.replicasOf(r.Model)
		if len(now) == 0 {
			return nil // the model is gone, or has been scaled to none
		}
		i := slices.IndexFunc(now, func(other engines.Replica) bool { return other.ID == r.ID })
		replaced := i < 0 || now[i].State == engines.Ready && now[i].Since.After(begun)
		if replaced && readyReplicas(now) >= min(ready, len(now)) {
			return nil
		}
		if i >= 0 && now[i].State == engines.Failed && now[i].Since.After(begun) {
			return fmt.Errorf("it has failed after its restart: %s", now[i].Reason)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func readyReplicas(all []engines.Replica) (n int) {
	for i := range all {
		if all[i].State == engines.Ready {
			n++
		}
	}
	return n
}

// Log implements admin.Actions.
func (o *operator) Log(ctx context.Context, w io.Writer, r engines.Replica, q loglines.Query) error {
	switch l := o.launchers; r.Launcher {
	case engines.Local:
		if node := l.joinedNode(r.Node); node != nil {
			return node.Log(ctx, w, r.ID, q)
		}
		return l.local.Log(ctx, w, r.ID, q)
	case engines.Kubernetes:
		return l.kubernetes.Log(ctx, w, r.ID, q)
	case engines.Ray:
		return l.ray.Log(ctx, w, r.ID, q)
	}
	return fmt.Errorf("someone else runs the server %s, and has its log", r.Address)
}
