package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
)

// maker makes up requests. At speed 1 they come about as fast as eight replicas of 6,000 tokens a
// second compute four fifths of their tokens, if nothing were cached.
type maker struct {
	random   *rand.Rand
	now      time.Duration
	block    int32
	requests []trace.Request
}

// madeCount is how many requests a made-up workload has, madeSeed what they are drawn from.
const (
	madeCount = 6000
	madeSeed  = 14
)

// usualLoad is how many tokens arrive in a second at speed 1.
const usualLoad = 0.8 * 8 * 6000

// worstCases are made-up workloads that are hard for one rule or another.
var worstCases = []struct {
	name     string
	requests func(m *maker)
}{
	{"one hot beginning", func(m *maker) {
		hot := m.blocks(8)
		m.steadily(func() ([]int32, int) { return hot, m.between(200, 3000) })
	}},
	{"all the same", func(m *maker) {
		same := m.blocks(12)
		for range madeCount {
			m.add(same, 0)
			m.wait(6000)
		}
	}},
	{"all different", func(m *maker) {
		m.steadily(func() ([]int32, int) { return nil, m.between(1000, 11000) })
	}},
	{"all different, equal lengths", func(m *maker) {
		m.steadily(func() ([]int32, int) { return nil, 6000 })
	}},
	{"bursts", func(m *maker) {
		beginnings := m.beginnings(64, 4)
		for len(m.requests) < madeCount {
			for range 64 {
				m.add(beginnings[m.random.IntN(64)], m.between(500, 8000))
			}
			m.wait(64 * 6300)
		}
	}},
	{"heavy-tailed lengths", func(m *maker) {
		m.steadily(func() ([]int32, int) { return nil, m.pareto(1000, 128_000) })
	}},
	{"heavy-tailed popularity", func(m *maker) {
		beginnings := m.beginnings(400, 8)
		zipf := rand.NewZipf(m.random, 1.1, 1, 399)
		m.steadily(func() ([]int32, int) { return beginnings[zipf.Uint64()], m.between(100, 2000) })
	}},
	{"short prompts at high rates", func(m *maker) {
		m.steadily(func() ([]int32, int) { return nil, m.between(20, 400) })
	}},
	{"short questions, shared beginnings", func(m *maker) {
		beginnings := m.beginnings(192, 2)
		m.steadily(func() ([]int32, int) { return beginnings[m.random.IntN(192)], m.between(20, 200) })
	}},
}

// madeWorkload returns the requests that a function makes.
func madeWorkload(name string, requests func(*maker)) *workload {
	m := &maker{random: rand.New(rand.NewPCG(madeSeed, madeSeed))}
	requests(m)
	return newWorkload(name, m.requests)
}

// blocks returns so many new blocks.
func (m *maker) blocks(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = m.block
		m.block++
	}
	return ids
}

// beginnings returns count beginnings of so many blocks.
func (m *maker) beginnings(count, blocks int) [][]int32 {
	all := make([][]int32, count)
	for i := range all {
		all[i] = m.blocks(blocks)
	}
	return all
}

// add adds a request now: a beginning, and so many tokens of its own.
func (m *maker) add(beginning []int32, own int) {
	tokens := len(beginning)*blockTokens + own
	m.requests = append(m.requests, trace.Request{
		At: m.now, Prompt: tokens, Output: m.between(50, 500),
		Blocks: append(slices.Clip(beginning), m.blocks((own+blockTokens-1)/blockTokens)...),
	})
}

// wait lets the time pass in which so many tokens arrive.
func (m *maker) wait(tokens int) {
	m.now += seconds(m.random.ExpFloat64() * float64(tokens) / usualLoad)
}

// steadily adds requests at random times.
func (m *maker) steadily(request func() (beginning []int32, own int)) {
	total := 0
	for n := 1; n <= madeCount; n++ {
		beginning, own := request()
		total += len(beginning)*blockTokens + own
		m.add(beginning, own)
		m.wait(total / n)
	}
}

func (m *maker) between(low, high int) int { return low + m.random.IntN(high-low+1) }

// pareto returns lengths of which few make up most of the tokens.
func (m *maker) pareto(least, most int) int {
	return min(int(float64(least)*math.Pow(1-m.random.Float64(), -1/1.2)), most)
}
