package main

import (
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/report"
)

// plot draws each series over time, one panel below the other, as SVG.
func plot(samples []sample, lines string) string {
	panels := make([]report.Panel, len(series))
	last := time.Second
	if n := len(samples); n > 0 {
		last = max(last, samples[n-1].at)
	}
	for i, title := range strings.Split(lines, "\n")[:len(series)] {
		var l report.Line
		for _, s := range samples {
			l.X, l.Y = append(l.X, s.at.Seconds()), append(l.Y, s.values[i])
		}
		panels[i] = report.Panel{Title: strings.Join(strings.Fields(title), " "), End: last.Round(time.Second).String(), Lines: []report.Line{l}}
	}
	return report.SVG(panels)
}
