package redis

import (
	"cmp"
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

// errClock means that leases may have ended in Redis although their time is not over.
var errClock = errors.New("redis: its clock has jumped ahead")

// reply is what a script answered: a status, Redis' time in microseconds, and what belongs to the
// status.
type reply struct {
	status string
	now    int64
	fields
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
// Redis' clock from it. It fails if that clock has jumped so far ahead that leases may have ended:
// Run then joins again, which reports them.
func (s *Store) runTimed(ctx context.Context, script *client.Script, timeout time.Duration, args []any) (reply, error) {
	sent := time.Since(s.started)
	value, err := s.run(ctx, script, timeout, args)
	if err != nil {
		return reply{}, err
	}
	list, _ := value.([]any)
	r := reply{fields: fields{rest: list}}
	if r.status, r.now = r.text(), r.number(); r.err != nil {
		return reply{}, r.err
	}
	middle := (sent + time.Since(s.started)) / 2
	s.mu.Lock()
	defer s.mu.Unlock()
	offset := r.now - middle.Microseconds()
	jump := micros(offset - s.offset)
	s.offset = offset
	// An answer that takes long tells the offset less exactly.
	if script != joinScript && jump > s.cfg.Lease/2+timeout {
		maps.Copy(s.unreported, s.tasks)
		return reply{}, errClock
	}
	return r, nil
}

// deadline returns the time until which a script that is sent now may run, by Redis' clock.
func (s *Store) deadline(timeout time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notAfter = (time.Since(s.started) + timeout + s.cfg.Timeout).Microseconds() + s.offset
	return s.notAfter
}

// fields reads the elements of a list in a reply, one after the other. err is errReply as soon as
// there is no next one, or another one than expected. What is read then is the zero value.
type fields struct {
	rest []any
	err  error
}

func read[T int64 | string | []any](f *fields) (v T) {
	known := false
	if len(f.rest) > 0 {
		v, known = f.rest[0].(T)
	}
	if !known {
		f.rest, f.err = nil, errReply
		return v
	}
	f.rest = f.rest[1:]
	return v
}

func (f *fields) number() int64 { return read[int64](f) }

func (f *fields) text() string { return read[string](f) }

// list reads an element that is a list itself.
func (f *fields) list() []any { return read[[]any](f) }

// numbers reads an element that is a list of numbers.
func (f *fields) numbers() []int64 {
	inner := fields{rest: f.list()}
	all := make([]int64, len(inner.rest))
	for i := range all {
		all[i] = inner.number()
	}
	f.err = cmp.Or(f.err, inner.err)
	return all
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
