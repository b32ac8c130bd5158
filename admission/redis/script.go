package redis

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/admission"
)

var (
	//go:embed common.lua
	commonLua string
	//go:embed sync.lua
	syncLua string
	//go:embed join.lua
	joinLua string
	//go:embed heartbeat.lua
	heartbeatLua string
	//go:embed task.lua
	taskLua string
	//go:embed load.lua
	loadLua string
	//go:embed save.lua
	saveLua string

	syncScript      = client.NewScript(limitsLua() + commonLua + syncLua)
	joinScript      = client.NewScript(commonLua + joinLua)
	heartbeatScript = client.NewScript(commonLua + heartbeatLua)
	taskScript      = client.NewScript(commonLua + taskLua)
	loadScript      = client.NewScript(commonLua + loadLua)
	saveScript      = client.NewScript(commonLua + saveLua)
)

// limitsLua is the part of the sync script that is generated from admission.LimitTable. REASON has
// the numbers of the reasons by their names. MODEL_LIMITS and TENANT_LIMITS are the names of the
// limits that a claim carries, in their order.
func limitsLua() string {
	var b strings.Builder
	b.WriteString("local REASON = {")
	reasons := admission.Reasons()
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, " %s = %d,", name, reasons[name])
	}
	b.WriteString(" }\n")
	write := func(table string, limits []admission.Limit) {
		fmt.Fprintf(&b, "local %s = {", table)
		for _, l := range limits {
			fmt.Fprintf(&b, " '%s',", l.Name)
		}
		b.WriteString(" }\n")
	}
	write("MODEL_LIMITS", modelLimits)
	write("TENANT_LIMITS", tenantLimits)
	return b.String()
}

var errReply = errors.New("redis: the reply has a form that no script of this version sends: do gateways of several versions share the deployment?")

// reply is what a script answered: a status, Redis' time in microseconds, and what belongs to the
// status.
type reply struct {
	status string
	now    int64
	rest   []any
}

// run calls a script within a timeout.
func (s *Store) run(ctx context.Context, script *client.Script, timeout time.Duration, args []any) (any, error) {
	return within(ctx, timeout, func(ctx context.Context) (any, error) {
		return script.Run(ctx, s.redis, []string{s.prefix + "epoch"}, args...).Result()
	})
}

// answersInTime returns an error if Redis takes longer for an answer than a request waits.
func (s *Store) answersInTime(ctx context.Context) error {
	_, err := within(ctx, s.cfg.Timeout, func(ctx context.Context) (any, error) {
		return s.redis.Exists(ctx, s.prefix+"epoch").Result()
	})
	return err
}

// within calls Redis, and returns after the timeout even if the client does not notice it.
func within(ctx context.Context, timeout time.Duration, ask func(context.Context) (any, error)) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type result struct {
		value any
		err   error
	}
	results := make(chan result, 1)
	go func() {
		value, err := ask(ctx)
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("redis: no answer within %v: %w", timeout, ctx.Err())
	}
}

// runTimed calls a script that answers with a status and Redis' time, and learns the offset of
// Redis' clock from it.
func (s *Store) runTimed(ctx context.Context, script *client.Script, timeout time.Duration, args []any) (reply, error) {
	sent := time.Since(s.started)
	value, err := s.run(ctx, script, timeout, args)
	if err != nil {
		return reply{}, err
	}
	list, _ := value.([]any)
	if len(list) < 2 {
		return reply{}, errReply
	}
	r := reply{rest: list[2:]}
	var known bool
	if r.status, known = list[0].(string); !known {
		return reply{}, errReply
	}
	if r.now, known = list[1].(int64); !known {
		return reply{}, errReply
	}
	middle := (sent + time.Since(s.started)) / 2
	s.mu.Lock()
	s.offset = r.now - middle.Microseconds()
	s.mu.Unlock()
	return r, nil
}

// deadline returns the time until which a script that is sent now may run, by Redis' clock.
func (s *Store) deadline(timeout time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notAfter = (time.Since(s.started) + timeout + s.cfg.Timeout).Microseconds() + s.offset
	return s.notAfter
}

// at returns the element at index i of a reply.
func at[T int64 | string](list []any, i int) (T, error) {
	var none T
	if i >= len(list) {
		return none, errReply
	}
	v, ok := list[i].(T)
	if !ok {
		return none, errReply
	}
	return v, nil
}

// intsAt returns the list of integers at index i of a reply.
func intsAt(list []any, i int) ([]int64, error) {
	if i >= len(list) {
		return nil, errReply
	}
	inner, ok := list[i].([]any)
	if !ok {
		return nil, errReply
	}
	out := make([]int64, len(inner))
	for j := range inner {
		var err error
		if out[j], err = at[int64](inner, j); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
