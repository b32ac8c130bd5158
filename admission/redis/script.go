package redis

import (
	"context"
	_ "embed" // the scripts
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

// limitsLua is the part of the sync script that is generated from admission.LimitTable: REASON has the
// numbers of the reasons by their names; MODEL_LIMITS and TENANT_LIMITS are the names of the limits
// that a claim carries, in their order.
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

var errReply = errors.New("redis: a reply that no script of this version gives")

// reply is what a script answered: a word, Redis' time, and what the word is about.
type reply struct {
	status string
	now    int64
	rest   []any
}

// run calls a script within the timeout, however long the client takes to notice. It returns what the script returned.
func (s *Store) run(ctx context.Context, script *client.Script, timeout time.Duration, args []any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type result struct {
		value any
		err   error
	}
	results := make(chan result, 1)
	go func() {
		value, err := script.Run(ctx, s.redis, []string{s.prefix + "epoch"}, args...).Result()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("redis: no answer within %v: %w", timeout, ctx.Err())
	}
}

// ask is run for the scripts that answer with a word and Redis' time, from which it learns what time it is there.
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

// deadline is until when a script that is sent now may run, by Redis' clock.
func (s *Store) deadline(timeout time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notAfter = (time.Since(s.started) + timeout + s.cfg.Timeout).Microseconds() + s.offset
	return s.notAfter
}

// number is the integer at i of a reply, text the string there.
func intAt(list []any, i int) (int64, error) {
	if i >= len(list) {
		return 0, errReply
	}
	n, ok := list[i].(int64)
	if !ok {
		return 0, errReply
	}
	return n, nil
}

func stringAt(list []any, i int) (string, error) {
	if i >= len(list) {
		return "", errReply
	}
	t, ok := list[i].(string)
	if !ok {
		return "", errReply
	}
	return t, nil
}

// numbers is the list of integers at i of a reply.
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
		if out[j], err = intAt(inner, j); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
