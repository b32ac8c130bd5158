package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/request"
)

// operator does what an operator asks for on the admin listener. It implements admin.Actions.
// Drains last until they are taken back, and numbers of replicas until the file changes. Both
// outlive the process (operatorstate.go).
type operator struct {
	log        *zap.Logger
	dir        *process.Dir
	dispatcher *dispatch.Dispatcher
	requests   *request.Store
	carried    *carry.Server
	launchers  *launchers
	// work gives run what takes long.
	work chan func(context.Context)

	// saving is held while the state is written.
	saving sync.Mutex
	// saveFailed says that the last write has failed. unsaved tells run of it. Its capacity is 1.
	saveFailed atomic.Bool
	unsaved    chan struct{}

	mu sync.Mutex
	// restarting has the models whose replicas are being restarted; guarded by mu
	restarting map[string]bool
}

func newOperator(g *Gateway, l *launchers) *operator {
	return &operator{log: g.log, dir: g.dir, dispatcher: g.dispatcher, requests: g.requests, carried: g.carried, launchers: l,
		work: make(chan func(context.Context)), unsaved: make(chan struct{}, 1), restarting: map[string]bool{}}
}

// run does what takes long, and writes a state again that could not be written, until ctx ends.
func (o *operator) run(ctx context.Context) error {
	var working sync.WaitGroup
	defer working.Wait()
	for {
		var again <-chan time.Time
		if o.saveFailed.Load() {
			again = time.After(saveAgainAfter)
		}
		select {
		case <-ctx.Done():
			return nil
		case do := <-o.work:
			working.Go(func() { do(ctx) })
		case <-o.unsaved:
		case <-again:
			o.save()
		}
	}
}

// DrainModel implements admin.Actions.
func (o *operator) DrainModel(model string, drained bool) {
	o.dispatcher.DrainModel(model, drained)
	o.save()
}

// DrainReplica implements admin.Actions.
func (o *operator) DrainReplica(id string, drained bool) {
	o.dispatcher.DrainReplica(id, drained)
	o.save()
}

// IsDrained implements admin.Actions.
func (o *operator) IsDrained(id string) bool {
	_, replicas := o.dispatcher.Drained()
	return replicas[id]
}

// IsModelDrained implements admin.Actions.
func (o *operator) IsModelDrained(model string) bool {
	models, _ := o.dispatcher.Drained()
	return models[model]
}

// maxScale bounds the number of replicas that an operator may ask for, against a slip of the hand.
const maxScale = 10_000

// SetScale implements admin.Actions.
func (o *operator) SetScale(model string, to *admin.Bounds) (admin.Scale, *openai.Error) {
	if to != nil && (to.Min < 0 || to.Max < max(to.Min, 1) || to.Max > maxScale) {
		return admin.Scale{}, openai.Errorf(openai.CodeInvalidRequest,
			"min is %d and max is %d: min must be 0 or more, and max from min (at least 1) to %d.", to.Min, to.Max, maxScale)
	}
	if by := o.launchers.scaledBy(model); by != "" && to != nil {
		return admin.Scale{}, conflict("The gateway `%s` decides how many replicas the model `%s` has, because it leads the gateways that share them. "+
			"Ask that one, or change `replicas` of the model, which all gateways read.", by, model)
	}
	o.launchers.override(model, to)
	o.save()
	now := o.launchers.scaleOf(model)
	if now == nil { // the file has changed in between
		return admin.Scale{}, openai.ModelNotFound("model", model)
	}
	return *now, nil
}

// CancelRequest implements admin.Actions.
func (o *operator) CancelRequest(id string) *openai.Error {
	err := o.requests.Cancel(id)
	if err != nil {
		if kept := o.carried.Cancel(id); !errors.Is(kept, request.ErrNotRunning) {
			err = kept
		}
	}
	switch {
	case errors.Is(err, request.ErrNotRunning):
		return notFound("No request with the id `%s` runs. `sluice requests` lists those that run. The id is their request_id, not the client's own.", id)
	case err != nil:
		return conflict("This process does not hold the request: it is ending right now, or it began under an earlier process of the gateway. " +
			"Restart or drain its replica to end it.")
	}
	return nil
}
