package report

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// Bar is one bar: a value, and how far it spreads. The zero Bar is not drawn.
type Bar struct{ Value, Low, High float64 }

// BarOf returns the bar of the median of some values. Without values it is the zero Bar.
func BarOf(values []float64) Bar {
	if len(values) == 0 {
		return Bar{}
	}
	return Bar{Median(values), slices.Min(values), slices.Max(values)}
}

// Median returns the median of some values, or 0 if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Quantile returns the q-quantile of some values, or 0 if there are none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1))]
}

// Group is bars that stand together, one for each name of the chart, in the same order.
type Group struct {
	Name string
	Bars []Bar
}

// Chart is horizontal bars in groups. A line marks the value 1.
type Chart struct {
	Title  string
	Names  []string
	Groups []Group
}

// The size of a chart in pixels: where bars begin, how long the longest may be, and the heights.
const (
	barsBegin, barsLength, barHeight, groupGap = 250, 450, 12, 10
)

// Charts draws the charts, one below the other. A chart without groups is left out.
func Charts(charts []Chart) string {
	var b strings.Builder
	y := 20
	for _, c := range charts {
		if len(c.Groups) > 0 {
			y = c.draw(&b, y) + 30
		}
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n"+
		`<rect width="100%%" height="100%%" fill="#fff"/>`+"\n%s</svg>\n", barsBegin+barsLength+80, y, &b)
}

// draw draws the chart from y downwards and returns where it ends.
func (c *Chart) draw(b *strings.Builder, y int) int {
	fmt.Fprintf(b, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y, html.EscapeString(c.Title))
	y += 18
	for i, name := range c.Names {
		x := 10 + i%3*250
		if i > 0 && i%3 == 0 {
			y += 16
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="12" height="10" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			x, y-9, colours[i%len(colours)], x+18, y, html.EscapeString(name))
	}
	y += 12
	top := 1.0
	for _, g := range c.Groups {
		for _, bar := range g.Bars {
			top = max(top, bar.High)
		}
	}
	begin := y
	for _, g := range c.Groups {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", barsBegin-8, y+len(g.Bars)*barHeight/2+4, html.EscapeString(g.Name))
		for i, bar := range g.Bars {
			bar.draw(b, y+i*barHeight, top, colours[i%len(colours)])
		}
		y += len(g.Bars)*barHeight + groupGap
	}
	one := across(1, top)
	fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#111" stroke-dasharray="3 2"/>`+"\n", one, one, begin-4, y-groupGap+4)
	return y
}

// across returns the horizontal place of a value.
func across(value, top float64) float64 { return barsBegin + value/top*barsLength }

// draw draws the bar with its spread and its value.
func (bar Bar) draw(b *strings.Builder, y int, top float64, colour string) {
	if bar.Value == 0 {
		return
	}
	middle := y + barHeight/2
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, barsBegin, y+1, across(bar.Value, top)-barsBegin, barHeight-2, colour)
	fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#111"/>`, across(bar.Low, top), across(bar.High, top), middle, middle)
	fmt.Fprintf(b, `<text x="%.1f" y="%d">%.2f</text>`+"\n", across(bar.High, top)+5, middle+4, bar.Value)
}
