package main

import (
	"math/rand/v2"
)

// namedRule is a rule under comparison.
type namedRule struct {
	name string
	new  func(f *fleet) rule
}

// The rules that the demands compare.
const (
	leastName  = "least connections"
	memoryName = "`prefix` of before"
	scoresName = "weighted scores"
	oursName   = "**`prefix`**"
	oracleName = "oracle of the same rule"
)

// seed is what rules that draw lots draw from.
const seed = 1

// rules are all rules, in the order of the tables.
var rules = []namedRule{
	{"round robin", func(f *fleet) rule { return &roundRobin{fleet: f} }},
	{leastName, func(f *fleet) rule { return &leastConnections{fleet: f} }},
	{"`chwbl`", func(f *fleet) rule { return &boundedLoads{fleet: f} }},
	{"`chwbl`, floor 8", func(f *fleet) rule { return &boundedLoads{fleet: f, bound: loadBound} }},
	{memoryName, func(f *fleet) rule {
		return &conversationMemory{boundedLoads{fleet: f, bound: loadBound}, map[beginning]int{}}
	}},
	{"thresholds", func(f *fleet) rule { return &thresholds{newApproximate(f)} }},
	{scoresName, func(f *fleet) rule { return &weightedScores{newApproximate(f), rand.New(rand.NewPCG(seed, seed))} }},
	{oursName, func(f *fleet) rule { return newSluice(f, knowledge{}) }},
	{oracleName, func(f *fleet) rule { return newOracle(f) }},
	{boundName, func(f *fleet) rule { return newSharedCache(f) }},
}

// compared are the rules that all points of the sweep have.
var compared = []string{leastName, memoryName, scoresName, oursName, oracleName}

// variants are `prefix` with less or other knowledge.
var variants = []namedRule{
	{"as in the other tables", func(f *fleet) rule { return newSluice(f, knowledge{}) }},
	{"sees first tokens at once (managed streams)", func(f *fleet) rule { return newSluice(f, knowledge{managed: true}) }},
	{"engine does not tell its cached tokens", func(f *fleet) rule { return newSluice(f, knowledge{noUsage: true}) }},
	{"first guess of the rate 3 times too fast", func(f *fleet) rule { return newSluice(f, knowledge{guess: 3}) }},
	{"first guess of the rate 3 times too slow", func(f *fleet) rule { return newSluice(f, knowledge{guess: 1. / 3}) }},
	{"caches believed twice as large", func(f *fleet) rule { return newSluice(f, knowledge{cache: 2}) }},
	{"caches believed four times as large", func(f *fleet) rule { return newSluice(f, knowledge{cache: 4}) }},
	{"caches believed half as large", func(f *fleet) rule { return newSluice(f, knowledge{cache: 0.5}) }},
	{"2 gateways that tell each other", func(f *fleet) rule { return newSluice(f, knowledge{gateways: 2, told: true}) }},
	{"4 gateways that tell each other", func(f *fleet) rule { return newSluice(f, knowledge{gateways: 4, told: true}) }},
	{"2 gateways that do not", func(f *fleet) rule { return newSluice(f, knowledge{gateways: 2}) }},
	{"4 gateways that do not", func(f *fleet) rule { return newSluice(f, knowledge{gateways: 4}) }},
}
