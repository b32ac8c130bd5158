package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// The size of one panel of the plot in pixels, and its margins.
const (
	panelWidth, panelHeight = 720, 90
	leftMargin, topMargin   = 60, 26
)

// plot draws each series over time, one panel below the other, as SVG.
func plot(samples []sample, report string) string {
	var b strings.Builder
	lines := strings.Split(report, "\n")
	height := len(series)*(panelHeight+topMargin+14) + 20
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		panelWidth+leftMargin+20, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	for i := range series {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", leftMargin, i*(panelHeight+topMargin+14)+topMargin)
		panel(&b, samples, i, lines[i])
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// panel draws one series from 0 to its largest value.
func panel(b *strings.Builder, samples []sample, i int, title string) {
	top, last := 1.0, time.Second
	for _, s := range samples {
		top, last = max(top, s.values[i]), max(last, s.at)
	}
	fmt.Fprintf(b, `<text y="-8" xml:space="preserve">%s</text>`+"\n", html.EscapeString(strings.Join(strings.Fields(title), " ")))
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="none" stroke="#ccc"/>`+"\n", panelWidth, panelHeight)
	fmt.Fprintf(b, `<text x="-6" y="10" text-anchor="end">%.0f</text><text x="-6" y="%d" text-anchor="end">0</text>`+"\n", top, panelHeight)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end" fill="#666">%s</text>`+"\n", panelWidth, panelHeight+12, last.Round(time.Second))
	var points []string
	for _, s := range samples {
		points = append(points, fmt.Sprintf("%.1f,%.1f", float64(s.at)/float64(last)*panelWidth, panelHeight-s.values[i]/top*panelHeight))
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="#2563eb" stroke-width="1"/>`+"\n", strings.Join(points, " "))
}
