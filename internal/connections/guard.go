// Package connections keeps a few clients from taking all connections that Envoy may have. Package
// internal/gateway runs its Guard and tells Envoy what the Guard decides.
//
// Envoy itself closes each connection above its limit, and each connection that sends no request in
// time. Neither helps the other clients when one client opens connections faster than Envoy closes
// them. So the Guard asks the kernel each second how many connections each source address has. That
// takes milliseconds. So the Guard asks only every ten seconds while there is no need. There is
// none while the number of all sockets is the same as at the last count, or so small that no source
// can have too many. When nearly all connections are in use, the Guard does three things:
//
//   - It tells Envoy the share in use, so that Envoy closes idle connections soon.
//   - It has Envoy ask for each new connection. A source that has more than its fair share gets
//     none. See Guard.ShouldRateLimit.
//   - Envoy asks at once, and not after the first bytes of a request.
package connections

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
)

const (
	// NearLimit is the share of the limit from which on the Guard acts.
	NearLimit = 0.8
	// lookInterval is how often the connections are counted. A count that takes long is followed by
	// a pause of restFactor times its duration, so that counting takes at most 5 % of one core.
	lookInterval = time.Second
	restFactor   = 20
	// recount is how often the connections are counted at least, although the last count still
	// holds.
	recount = 10 * time.Second
	// fewSockets is the share of the limit below which the number of all sockets tells enough. The
	// clients have no more connections than that, and may open as many again until the next look.
	fewSockets = NearLimit / 2
	// calm is how long the connections must be fewer before the Guard stops to act.
	calm = 30 * time.Second
	// leastShare is a number of connections that each source may have at any time.
	leastShare = 8
)

// Config says what a Guard guards.
type Config struct {
	// Listen is the address of Envoy's listener for clients.
	Listen netip.AddrPort
	// Limit returns how many connections Envoy may have. 0 means that it is not known, and then the
	// Guard only counts.
	Limit func() int
	// PerSource is the greatest number of connections of one source at any time. 0 means that a
	// source may have all connections until they are nearly all in use, and its fair share then.
	PerSource int
	// Trusted are proxies that bring the connections of many clients. They are never refused.
	Trusted []netip.Prefix
	// PressureFile is the file in which Envoy reads the share of the connections that is in use.
	// Empty means that there is none.
	PressureFile string
	// Changed is called when the Mode changes. It is called by Run alone, and not at the same time
	// as itself.
	Changed func(Mode)
	// Count returns the connections by source. nil means the function Count.
	Count func(netip.AddrPort) (map[netip.Addr]int, error)
	// Total returns the number of sockets that change when a connection begins or ends. nil means
	// the function socketTotal.
	Total func(netip.AddrPort) (int, error)
	// Log receives failures. Required.
	Log *zap.Logger
}

// Mode says what Envoy does with a new connection.
type Mode struct {
	// AskSource means that Envoy asks the Guard whether the source may have one more.
	AskSource bool
	// NearLimit means that Envoy asks at once, and not after the first line of a request.
	NearLimit bool
}

// Status describes the connections to an operator.
type Status struct {
	// Open is the number of connections at the last count and of those that were admitted since.
	// Limit is how many there may be. A Limit of 0 means that it is not known.
	Open, Limit int
	// Source has the most connections: Most. It is the zero Addr while there are none.
	Source netip.Addr
	Most   int
	// Refused counts the connections that the Guard has refused.
	Refused uint64
	// Err says why the connections cannot be counted. nil means that they are.
	Err error
}

// Near reports whether nearly all connections are in use.
func (s Status) Near() bool { return s.Limit > 0 && float64(s.Open) >= NearLimit*float64(s.Limit) }

// Guard guards the connections of one listener. Make it with New. Its methods are safe for
// concurrent use.
type Guard struct {
	Config

	mu sync.Mutex
	// sources are the connections of the last count and those that were admitted since. Guarded by
	// mu.
	sources map[netip.Addr]int
	// share is how many connections a source may have. Guarded by mu.
	share int
	// status is the status of the last count. Guarded by mu.
	status Status

	// admitted tells that a connection was admitted since the last count. Guarded by mu.
	admitted bool

	// The fields below belong to Run. lastNear is when the limit was near for the last time, and
	// written is the text in the pressure file. lastCount is when the last count was, and total is
	// what Total said before it; -1 means that it did not know.
	mode      Mode
	lastNear  time.Time
	written   string
	lastCount time.Time
	total     int
}

// New returns a Guard. It starts nothing.
func New(c Config) *Guard {
	if c.Count == nil {
		c.Count = Count
	}
	if c.Total == nil {
		c.Total = socketTotal
	}
	return &Guard{Config: c, share: math.MaxInt, mode: c.Mode()}
}

// Mode returns the Mode before Run has counted for the first time.
func (c Config) Mode() Mode { return Mode{AskSource: c.PerSource > 0} }

// Run counts the connections until ctx ends. It returns nil.
func (g *Guard) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		begin := time.Now()
		g.look(begin)
		timer.Reset(max(beat.Until(lookInterval), restFactor*time.Since(begin)))
	}
}

// Status returns the status of the last count.
func (g *Guard) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// look counts the connections, unless the last count still holds, and does what follows from their
// number.
func (g *Guard) look(now time.Time) {
	if g.stillHolds(now) {
		return
	}
	sources, err := g.Count(g.Listen)
	status := g.store(sources, g.Limit(), err)
	if status.Near() {
		g.lastNear = now
	}
	near := !g.lastNear.IsZero() && now.Sub(g.lastNear) < calm
	wasNear := g.mode.NearLimit
	if mode := (Mode{AskSource: near || g.PerSource > 0, NearLimit: near}); mode != g.mode {
		g.mode = mode
		g.Changed(mode)
	}
	g.writePressure(status, near || wasNear)
}

// stillHolds reports whether the last count still holds: no connection was admitted, the guard does
// not act, and the kernel has as many sockets as then, or few. As many connections may have begun
// as have ended, so the answer is false after recount.
func (g *Guard) stillHolds(now time.Time) bool {
	total, err := g.Total(g.Listen)
	if err != nil {
		total = -1
	}
	limit := g.Limit()
	enough := total == g.total || g.PerSource == 0 && float64(total) < fewSockets*float64(limit)
	g.mu.Lock()
	holds := total >= 0 && enough && !g.admitted && g.status.Err == nil && g.status.Limit == limit
	g.admitted = false
	g.mu.Unlock()
	if holds && !g.mode.NearLimit && now.Sub(g.lastCount) < recount {
		return true
	}
	g.total, g.lastCount = total, now
	return false
}

// store makes a count the current one and returns its status. After an error nobody is refused
// until the next count, because only a count knows which connections have ended.
func (g *Guard) store(sources map[netip.Addr]int, limit int, err error) Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		if g.status.Err == nil {
			g.Log.Error("connections of clients not counted; no source is kept from taking all of them", zap.Error(err))
		}
		g.sources = nil
		g.status = Status{Err: err, Limit: limit, Refused: g.status.Refused}
		return g.status
	}
	g.sources = sources
	g.status = Status{Open: sum(sources), Limit: limit, Refused: g.status.Refused}
	g.status.Source, g.status.Most = largest(sources)
	g.share = g.shareOf(sources, g.status)
	return g.status
}

// shareOf returns how many connections a source may have.
func (g *Guard) shareOf(sources map[netip.Addr]int, s Status) int {
	share := math.MaxInt
	if s.Near() {
		share = max(leastShare, fairShare(sources, int(NearLimit*float64(s.Limit))))
	}
	if g.PerSource > 0 {
		share = min(share, g.PerSource)
	}
	return share
}

// admit reports whether a client may have one more connection, and counts it if so. A connection
// that the last count had already is counted twice until the next count. So a source at its limit
// may be refused its last connection for that time.
func (g *Guard) admit(client netip.Addr) bool {
	source := Source(client)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sources == nil {
		return true // nothing was counted yet, or nothing can be
	}
	if g.share == math.MaxInt {
		g.share = g.shareOf(g.sources, g.status) // the share begins as soon as the limit is near
	}
	full := g.status.Limit > 0 && g.status.Open >= g.status.Limit
	if !g.trusted(client) && (full || g.sources[source] >= g.share) {
		g.status.Refused++
		return false
	}
	g.sources[source]++
	g.status.Open++
	if have := g.sources[source]; have > g.status.Most {
		g.status.Source, g.status.Most = source, have
	}
	g.admitted = true
	return true
}

func (g *Guard) trusted(client netip.Addr) bool {
	return slices.ContainsFunc(g.Trusted, func(p netip.Prefix) bool { return p.Contains(client.Unmap()) })
}

// writePressure tells Envoy the share of the connections that is in use. While the Guard acts, it
// is at least NearLimit, because Envoy then lets connections without a request in.
func (g *Guard) writePressure(s Status, acting bool) {
	if g.PressureFile == "" || s.Limit <= 0 {
		return
	}
	share := min(float64(s.Open)/float64(s.Limit), 1)
	if acting {
		share = max(share, NearLimit)
	}
	text := strconv.FormatFloat(share, 'f', 2, 64)
	if text == g.written {
		return
	}
	if err := replaceFile(g.PressureFile, text); err != nil {
		g.Log.Error("Envoy was not told how many connections are in use", zap.Error(err))
		return
	}
	g.written = text
}

// WritePressure writes a pressure file that says that no connection is in use. Envoy needs a file
// at its start.
func WritePressure(path string) error { return replaceFile(path, "0.00") }

// replaceFile replaces a file by a rename, which is the change that Envoy watches for.
func replaceFile(path, text string) error {
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
