package main

import (
	"fmt"
	"strings"

	"github.com/sluice-gateway/sluice/internal/bench/report"
)

// plotTrace draws the mean time to the first token over the load, for each size of the caches.
func (s *sweep) plotTrace() string {
	var panels []report.Panel
	for _, cache := range caches {
		panels = append(panels, panelOf(s.trace, func(p *point) bool { return p.cache == cache },
			func(p *point) string { return "Conversation trace, caches of " + p.cacheName() + " tokens" }))
	}
	return report.SVG(panels)
}

// plotMade draws the same for each of the made-up workloads.
func (s *sweep) plotMade() string {
	var panels []report.Panel
	for _, c := range worstCases {
		panels = append(panels, panelOf(s.made, func(p *point) bool { return p.workload.name == c.name && !p.slow },
			func(p *point) string { return "Made up: " + p.workload.name }))
	}
	return report.SVG(panels)
}

// panelOf draws the compared rules at the points that a condition holds for.
func panelOf(points []*point, in func(*point) bool, title func(*point) string) report.Panel {
	panel := report.Panel{Lines: make([]report.Line, len(compared)), From: demandedLoads[0]}
	most := 0.0
	for i, name := range compared {
		panel.Lines[i].Name = strings.Trim(name, "*`")
		if name == memoryName {
			panel.Lines[i].Name = "prefix of before"
		}
	}
	for _, p := range points {
		if !in(p) {
			continue
		}
		panel.Title = title(p) + ": mean time to the first token (s) over the load"
		panel.End = fmt.Sprintf("load %g to %g", panel.From, p.load)
		for i, name := range compared {
			l := &panel.Lines[i]
			l.X, l.Y = append(l.X, p.load), append(l.Y, p.outcomes[name].mean)
			most = max(most, p.outcomes[name].mean)
		}
		panel.Top = max(panel.Top, 4*p.outcomes[oursName].mean)
	}
	// Rules that fall behind without end must not hide the others.
	panel.Top = min(panel.Top, most)
	return panel
}
