package main

import (
	"fmt"
	"strings"
)

// document is the text that goes into docs/routing.md.
func (s *sweep) document() string {
	var b strings.Builder
	s.writeRules(&b)
	s.writeRatios(&b)
	s.writeVariants(&b)
	b.WriteString("### All points\n\nMean time to the first token in seconds.\n\n")
	b.WriteString("| workload | fleet | caches | load | " + strings.Join(compared, " | ") + " | beside least connections |\n")
	b.WriteString("| --- | --- | --- | --- |" + strings.Repeat(" --- |", len(compared)+1) + "\n")
	for _, p := range s.all() {
		p.writeRow(&b)
	}
	return b.String()
}

// writeRules writes a table of all rules for each demanded point.
func (s *sweep) writeRules(b *strings.Builder) {
	for _, p := range s.trace {
		if !p.isDemanded() {
			continue
		}
		fmt.Fprintf(b, "**Conversation trace, caches of %s tokens, load %g**\n\n", p.cacheName(), p.load)
		b.WriteString("| rule | mean | p50 | p90 | p99 | cached tokens | busiest replica / mean |\n| --- | --- | --- | --- | --- | --- | --- |\n")
		for _, r := range rules {
			o := p.outcomes[r.name]
			fmt.Fprintf(b, "| %s | %.2f s | %.2f s | %.2f s | %.2f s | %.1f %% | %.2f |\n", r.name, o.mean, o.p50, o.p90, o.p99, 100*o.cached, o.busiest)
		}
		b.WriteString("\n")
	}
}

// writeRatios writes what was demanded beside what was measured.
func (s *sweep) writeRatios(b *strings.Builder) {
	b.WriteString("### Demands\n\n| caches | load |")
	for _, d := range demands {
		fmt.Fprintf(b, " %s ÷ %s ≤ %g |", d.about, d.other, d.atMost)
	}
	b.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(demands)) + "\n")
	for _, p := range s.trace {
		if !p.isDemanded() {
			continue
		}
		fmt.Fprintf(b, "| %s | %g |", p.cacheName(), p.load)
		for i := range demands {
			format := " %.2f |"
			if d := &demands[i]; !d.isMet(p) {
				format = " **%.3f** |"
			}
			fmt.Fprintf(b, format, demands[i].ratio(p))
		}
		b.WriteString("\n")
	}
	lines := missed(s.all())
	if len(lines) == 0 {
		b.WriteString("\nAll demands are met at all points.\n\n")
		return
	}
	b.WriteString("\nNot met:\n\n- " + strings.Join(lines, "\n- ") + "\n\n")
}

// writeVariants writes a table of the strategy with less knowledge.
func (s *sweep) writeVariants(b *strings.Builder) {
	b.WriteString("### What a gateway has to know\n\nMean time to the first token in seconds, and 99th percentile.\n\n| `prefix` |")
	line := "| --- |"
	for _, p := range s.trace {
		if p.isDemanded() {
			fmt.Fprintf(b, " %s, load %g |", p.cacheName(), p.load)
			line += " --- |"
		}
	}
	b.WriteString("\n" + line + "\n")
	for _, v := range variants {
		b.WriteString("| " + v.name + " |")
		for _, p := range s.trace {
			if p.isDemanded() {
				fmt.Fprintf(b, " %.2f, %.1f |", p.outcomes[v.name].mean, p.outcomes[v.name].p99)
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// writeRow writes the point as a row of the table of all points.
func (p *point) writeRow(b *strings.Builder) {
	fmt.Fprintf(b, "| %s | %s | %s | %g |", p.workload.name, p.fleetName(), p.cacheName(), p.load)
	for _, name := range compared {
		fmt.Fprintf(b, " %.3g |", p.outcomes[name].mean)
	}
	fmt.Fprintf(b, " %.2f |\n", p.outcomes[oursName].mean/p.outcomes[leastName].mean)
}
