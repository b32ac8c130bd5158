package ray

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/engines"
)

// defaultLease is Config.Lease if it is 0.
const defaultLease = 10 * time.Second

// record is what a gateway tells the others of its group.
type record struct {
	// Gateway is Config.Identity.
	Gateway string `json:"gateway"`
	// Models holds the gateway's load by model. Models without load are missing.
	Models map[string]engines.Load `json:"models,omitempty"`
	// Requests holds the gateway's requests by replica. Replicas without requests are missing.
	Requests map[string]int `json:"requests,omitempty"`
	// Jobs holds replica.drainID by job, of all replicas of the writer. It is empty at others.
	Jobs map[string]string `json:"jobs,omitempty"`
	// Drained holds drain ids by job. The gateway has no requests there and will send none.
	Drained map[string]string `json:"drained,omitempty"`
}

// group is what the gateways of one installation share in Redis: which of them writes, and what
// each of them has. A nil group is a gateway that shares nothing, and may always write.
type group struct {
	redis redis.UniversalClient
	// keys are those of the scripts: the writer, the gateways by their expiry, their records.
	keys []string
	// instance names this process among the gateways. It is random, and also the token of the
	// lease.
	instance string
	lease    time.Duration
	began    time.Time

	mu sync.Mutex
	// term counts the leases that this gateway has had. heldUntil is how long it may write under
	// the last one. Guarded by mu.
	term      uint64
	heldUntil time.Time
	// answered is when the last exchange that got an answer was sent. err is why the last one got
	// none. standFrom is from when on a free lease may be taken. Guarded by mu.
	answered, standFrom time.Time
	err                 error
	// writer is the instance that holds the lease. Guarded by mu.
	writer string
	// others are the records of the other live gateways by instance. Guarded by mu.
	others map[string]record
	// known are the identities of all gateways that were ever in the group. strangers are those
	// that were asked for and were not, with the time of the first question. Guarded by mu.
	known     map[string]bool
	strangers map[string]time.Time
}

// newGroup returns the group of the installation in Redis. Installations of the same name on other
// clusters have groups of their own.
func newGroup(c Config) *group {
	prefix := "{sluice}:ray:" + strings.TrimRight(c.Address, "/") + ":" + c.Name + ":"
	return &group{
		redis: c.Redis, keys: []string{prefix + "writer", prefix + "gateways", prefix + "records"}, instance: rand.Text(),
		lease: c.Lease, began: time.Now(), known: map[string]bool{c.Identity: true}, strangers: map[string]time.Time{},
	}
}

// What a gateway does about a lease that nobody holds.
const (
	// standAlways takes it. standKnown takes it unless Redis has lost the group. standNever leaves
	// it.
	standAlways = "always"
	standKnown  = "known"
	standNever  = "never"
)

var (
	// exchangeScript stores the record of a gateway, takes the lease or renews it, and removes the
	// gateways that have expired. KEYS: group.keys. ARGV: instance, what it does about a free
	// lease, duration of the lease in ms, record. It returns the holder of the lease, whether the
	// gateway was known, and all records.
	exchangeScript = redis.NewScript(`
local writer, gateways, records = KEYS[1], KEYS[2], KEYS[3]
local instance, stand, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', gateways, '-inf', now)) do
  redis.call('ZREM', gateways, gone)
  redis.call('HDEL', records, gone)
end
local known = redis.call('ZSCORE', gateways, instance) and 1 or 0
redis.call('ZADD', gateways, now + lease, instance)
redis.call('HSET', records, instance, ARGV[4])
redis.call('PEXPIRE', gateways, 2 * lease)
redis.call('PEXPIRE', records, 2 * lease)
if stand == 'always' or stand == 'known' and known == 1 then redis.call('SET', writer, instance, 'NX', 'PX', lease) end
local holder = redis.call('GET', writer)
if holder == instance then redis.call('PEXPIRE', writer, lease) end
return { holder or '', known, redis.call('HGETALL', records) }`)

	// leaveScript gives the lease back, and removes the record or leaves a last one, which expires.
	// KEYS: group.keys. ARGV: instance, last record, which is empty for none.
	leaveScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
else
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
end
return 1`)
)

// exchange tells the group what this gateway has, and learns what the others have. It takes the
// lease if that is free, and renews its own. It returns the models for which a gateway reports more
// waiting requests than before.
func (g *group) exchange(ctx context.Context, own record) (waiting []string, err error) {
	data, _ := json.Marshal(own) // strings and numbers: they always marshal
	ctx, cancel := context.WithTimeout(ctx, g.lease/5)
	defer cancel()
	sent := time.Now()
	answer, err := exchangeScript.Run(ctx, g.redis, g.keys, g.instance, g.stance(sent), g.lease.Milliseconds(), data).Slice()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err = err; err == nil {
		waiting, g.err = g.applyLocked(answer, sent)
	}
	return waiting, g.err
}

// stance returns what this gateway does about a lease that nobody holds. When Redis has lost the
// group, the writer may still write for the rest of its lease, so only it takes the lease at once.
func (g *group) stance(now time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.answered.IsZero() || now.Before(g.heldUntil):
		return standAlways
	case now.Before(g.standFrom):
		return standNever
	}
	return standKnown
}

// errAnswer: the answer of Redis is not that of exchangeScript.
var errAnswer = errors.New("the answer of Redis is not understood")

// applyLocked takes over the answer to an exchange. g.mu is held.
func (g *group) applyLocked(answer []any, sent time.Time) (waiting []string, err error) {
	if len(answer) != 3 {
		return nil, errAnswer
	}
	holder, isText := answer[0].(string)
	list, isList := answer[2].([]any)
	if !isText || !isList {
		return nil, errAnswer
	}
	if answer[1] == int64(0) && !g.answered.IsZero() {
		g.standFrom = sent.Add(g.lease)
	}
	g.answered, g.writer = sent, holder
	switch {
	case holder != g.instance:
		g.heldUntil = time.Time{}
	case !sent.Before(g.heldUntil):
		g.term++
		fallthrough
	default:
		g.heldUntil = sent.Add(g.lease - g.lease/5)
	}
	return g.readLocked(list), nil
}

// readLocked takes over the records, a list of instances and records. g.mu is held.
func (g *group) readLocked(list []any) (waiting []string) {
	before := g.others
	g.others = map[string]record{}
	for i := 0; i+1 < len(list); i += 2 {
		instance, _ := list[i].(string)
		data, _ := list[i+1].(string)
		if instance == g.instance {
			continue
		}
		var other record
		_ = json.Unmarshal([]byte(data), &other) // an unreadable record is empty
		g.others[instance] = other
		g.known[other.Gateway] = true
		for model, load := range other.Models {
			if load.Queued > before[instance].Models[model].Queued {
				waiting = append(waiting, model)
			}
		}
	}
	return waiting
}

// leave gives the lease back. The requests of the last record are respected by the others until it
// expires, because a successor of this process may continue them.
func (g *group) leave(last record) {
	ctx, cancel := context.WithTimeout(context.Background(), g.lease/5)
	defer cancel()
	var data []byte
	if len(last.Requests) > 0 {
		data, _ = json.Marshal(last) // strings and numbers: they always marshal
	}
	_ = leaveScript.Run(ctx, g.redis, g.keys, g.instance, data).Err() // the lease and the record also expire
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heldUntil = time.Time{}
}

// heldTerm returns the number of the lease that this gateway holds; 0 while it holds none.
func (g *group) heldTerm() uint64 {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !time.Now().Before(g.heldUntil) {
		return 0
	}
	return g.term
}

// mayWrite reports whether this gateway is the writer.
func (g *group) mayWrite() bool { return g == nil || g.heldTerm() > 0 }

// bound returns a context that ends when this gateway may not write any more.
func (g *group) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if g == nil {
		return ctx, func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return context.WithDeadline(ctx, g.heldUntil)
}

// isStranger reports whether a gateway was never in the group. It is not sure of one that was not
// known when it was first asked for, until a later exchange has come.
func (g *group) isStranger(gateway string) (stranger, sure bool) {
	if g == nil {
		return true, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known[gateway] {
		return false, true
	}
	asked, again := g.strangers[gateway]
	if !again {
		g.strangers[gateway] = time.Now()
	}
	return true, again && g.answered.After(asked)
}

// writersJobs returns record.Jobs of another gateway that is the writer; nil if it is not known.
func (g *group) writersJobs() map[string]string {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.others[g.writer].Jobs
}

// writerName returns the identity of the writer. It is empty if nobody is.
func (g *group) writerName(own string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.writer == g.instance {
		return own
	}
	return g.others[g.writer].Gateway
}

// requests returns how many requests the other gateways have on a replica.
func (g *group) requests(replica string) int {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, other := range g.others {
		n += other.Requests[replica]
	}
	return n
}

// haveDrained reports whether the other gateways are done with a job that drains.
func (g *group) haveDrained(job, drainID string) bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.others {
		if other.Drained[job] != drainID {
			return false
		}
	}
	return true
}

// load returns the load of the other gateways for a model.
func (g *group) load(model string) (sum engines.Load) {
	if g == nil {
		return sum
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.others {
		sum = sum.Add(other.Models[model])
	}
	return sum
}

// refused returns the Refused of each of the other gateways for a model, by its instance.
func (g *group) refused(model string) map[string]uint64 {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	refused := make(map[string]uint64, len(g.others))
	for instance, other := range g.others {
		refused[instance] = other.Models[model].Refused
	}
	return refused
}

// fault says why Redis has not answered for the time of a lease. It is empty if it has.
func (g *group) fault() string {
	if g == nil {
		return ""
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	last := g.began
	if g.answered.After(last) {
		last = g.answered
	}
	if g.err == nil || time.Since(last) < g.lease {
		return ""
	}
	return g.err.Error()
}
