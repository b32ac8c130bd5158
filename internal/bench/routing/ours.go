package main

import (
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/prefix"
	"github.com/sluice-gateway/sluice/ringhash"
)

// start is when virtual time begins.
var start = time.Unix(1_000_000, 0)

// loadBound is the default bound of loads.
var loadBound = ringhash.Bound{Factor: 1.25, Floor: 8}

// knowledge is what the gateways of a simulation are told. The zero value is one gateway with the
// default rates as its guess. It knows the size of the caches, and hears of first tokens and of
// cached tokens at the end of each answer, as it does of native requests.
type knowledge struct {
	// gateways is how many there are, which take the requests in turn. 0 means one.
	gateways int
	// told says that they tell each other their placements after placementDelay, and what waits at
	// once.
	told bool
	// managed says that a gateway sees the first token when it comes.
	managed bool
	// noUsage says that the engine does not tell how many tokens it had cached.
	noUsage bool
	// guess is the factor by which the first guess of the rate is wrong; 0: the gateway has none.
	guess float64
	// cache is the factor by which the known size of the caches is wrong; 0: it is right.
	cache float64
}

// placementDelay is how long a placement travels to the other gateways.
const placementDelay = time.Second

// sluice is the strategy `prefix` of one or several gateways.
type sluice struct {
	knowledge
	gateways []*gateway
	next     int
	// news are the placements that the other gateways have not heard of yet, the oldest first
	news []placement
}

// placement is a prompt that a gateway has given to a replica.
type placement struct {
	at   time.Duration
	from *gateway
	job  *job
}

func newSluice(f *fleet, k knowledge) *sluice {
	s := &sluice{knowledge: k}
	for range max(k.gateways, 1) {
		s.gateways = append(s.gateways, newGateway(f, k))
	}
	return s
}

func (s *sluice) pick(now time.Duration, j *job) int {
	g := s.gateways[s.next%len(s.gateways)]
	s.next++
	if s.told {
		s.tell(now, g)
	}
	return g.pick(now, j)
}

// tell brings what the gateways know of each other up to date, before one of them picks.
func (s *sluice) tell(now time.Duration, to *gateway) {
	for ; len(s.news) > 0 && s.news[0].at+placementDelay <= now; s.news = s.news[1:] {
		p := &s.news[0]
		for _, g := range s.gateways {
			if g != p.from {
				g.index.Record(p.job.replica, &p.job.chain)
			}
		}
	}
	for n, g := range s.gateways {
		if g == to {
			continue
		}
		for i, r := range g.replicas {
			to.replicas[i].SetRemote(start.Add(now), strconv.Itoa(n), r.Waiting(start.Add(now)))
		}
	}
}

func (s *sluice) sent(now time.Duration, j *job) {
	d := j.note.(*dispatched)
	d.gateway.index.Record(j.replica, &j.chain)
	if s.told {
		s.news = append(s.news, placement{now, d.gateway, j})
	}
}

func (s *sluice) firstToken(now time.Duration, j *job) {
	if s.managed {
		j.note.(*dispatched).work.FirstToken(start.Add(now))
	}
}

func (s *sluice) ended(now time.Duration, j *job) {
	d := j.note.(*dispatched)
	o := predict.Outcome{TTFT: j.first - j.at, Uncached: -1}
	if !s.noUsage {
		o.Uncached = float64(j.Prompt - j.cached)
		d.gateway.index.Correct(j.replica, d.matched, j.cached*tokenBytes)
	}
	d.work.End(start.Add(now), o)
	d.gateway.running[j.replica]--
}

// dispatched is what a gateway remembers of a request.
type dispatched struct {
	gateway *gateway
	work    predict.Work
	// matched is how many bytes of the prompt were expected in the replica's cache.
	matched int
}

// gateway routes by the packages that internal/dispatch uses. It does what dispatch does around
// them, without bounds such as max_per_replica.
type gateway struct {
	ring     *ringhash.Ring
	index    *prefix.Index
	replicas []*predict.Replica
	// running are this gateway's requests at each replica
	running []int

	hot        predict.Hot
	candidates []predict.Candidate
	matched    []int32
	loads      []int
}

func newGateway(f *fleet, k knowledge) *gateway {
	n := len(f.replicas)
	g := &gateway{
		ring: f.ring, index: prefix.NewIndex(nil), running: make([]int, n),
		candidates: make([]predict.Candidate, n), matched: make([]int32, n), loads: make([]int, n),
	}
	guess, cache := predict.DefaultRates, 1.0
	if k.guess > 0 {
		guess = predict.PrefillRate(f.rate * k.guess)
	}
	if k.cache > 0 {
		cache = k.cache
	}
	model := predict.NewModel(guess)
	for _, r := range f.replicas {
		g.index.Slot(int(float64(r.cache.limit*prefix.MediaBytes) * cache))
		g.replicas = append(g.replicas, predict.NewReplica(model))
	}
	return g
}

func (g *gateway) pick(now time.Duration, j *job) int {
	at := start.Add(now)
	g.index.Match(&j.chain, g.matched)
	for i, r := range g.replicas {
		p := r.Predict(at, g.running[i], uncachedTokens(j, g.matched[i]))
		g.candidates[i] = predict.Candidate{TTFT: p.TTFT, Own: p.Own, Queued: p.Queued, Matched: g.matched[i], Load: g.running[i]}
	}
	i, _ := predict.Choice{Ring: g.ring, Key: j.key, Bound: loadBound, Session: -1,
		Hot: &g.hot, Beginning: j.chain.HashAt(slices.Max(g.matched)), Now: at}.Choose(g.candidates, g.loads)
	work := g.replicas[i].Begin(at, g.running[i], uncachedTokens(j, g.matched[i]))
	g.running[i]++
	j.note = &dispatched{g, work, int(g.matched[i])}
	return i
}

// uncachedTokens is how many tokens a replica computes that has so many bytes of the prompt.
func uncachedTokens(j *job, matched int32) float64 {
	return max(float64(j.Prompt)-float64(matched)/tokenBytes, 1)
}

// oracle is the same choice by who knows all: what the caches have, when each replica will have
// computed what it was given, and its rate.
type oracle struct {
	*fleet
	candidates []predict.Candidate
	loads      []int
	hot        predict.Hot
	// waiting counts the requests without a first token at each replica
	waiting []int
}

func newOracle(f *fleet) *oracle {
	n := len(f.replicas)
	return &oracle{fleet: f, candidates: make([]predict.Candidate, n), loads: make([]int, n), waiting: make([]int, n)}
}

func (o *oracle) pick(now time.Duration, j *job) int {
	most, beginning := 0, uint64(0)
	for i, r := range o.replicas {
		matched := r.cache.match(j.Blocks) * blockTokens
		if matched > most {
			most, beginning = matched, uint64(j.Blocks[matched/blockTokens-1])+1
		}
		decodes := r.running - o.waiting[i]
		own := seconds(float64(max(j.Prompt-matched, 1)) / r.rateWith(decodes))
		o.candidates[i] = predict.Candidate{
			TTFT: max(r.free-now, 0) + own, Own: own, Queued: float64(o.waiting[i]),
			Matched: int32(matched), Load: r.running,
		}
	}
	i, _ := predict.Choice{Ring: o.ring, Key: j.key, Bound: loadBound, Session: -1,
		Hot: &o.hot, Beginning: beginning, Now: start.Add(now)}.Choose(o.candidates, o.loads)
	return i
}

func (o *oracle) sent(_ time.Duration, j *job)       { o.waiting[j.replica]++ }
func (o *oracle) firstToken(_ time.Duration, j *job) { o.waiting[j.replica]-- }
func (o *oracle) ended(time.Duration, *job)          {}
