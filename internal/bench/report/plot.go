// Package report sums up and writes what a program has measured: medians, plots as SVG, and
// sections of documents. The programs that measure use it: internal/chaos and those under
// internal/bench.
package report

import (
	"cmp"
	"fmt"
	"html"
	"strings"
)

// Line is a series of points. X must not fall.
type Line struct {
	Name string
	X, Y []float64
}

// Panel is one diagram. Its axes begin at 0, unless From is set.
type Panel struct {
	Title string
	// From is the least value of the horizontal axis, End is what stands at its right end.
	From float64
	End  string
	// Top is the value at the upper edge; larger values are cut off. 0: the largest value, at
	// least 1.
	Top   float64
	Lines []Line
}

// The size of a panel in pixels, and its margins. A panel with names of lines is higher.
const (
	panelWidth, panelHeight, namedHeight = 720, 90, 220
	leftMargin, topMargin, bottomMargin  = 60, 26, 14
	// nameWidth is the room of a line's name in the legend.
	nameWidth = 170
)

var colours = []string{"#2563eb", "#dc2626", "#16a34a", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4b5563", "#65a30d"}

// SVG draws the panels, one below the other.
func SVG(panels []Panel) string {
	var b strings.Builder
	y := 0
	for i := range panels {
		p := &panels[i]
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", leftMargin, y+topMargin)
		p.draw(&b)
		b.WriteString("</g>\n")
		y += p.height() + topMargin + bottomMargin + p.legendHeight()
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n"+
		`<rect width="100%%" height="100%%" fill="#fff"/>`+"\n%s</svg>\n", panelWidth+leftMargin+20, y+20, &b)
}

func (p *Panel) named() bool { return len(p.Lines) > 1 }

func (p *Panel) height() int {
	if p.named() {
		return namedHeight
	}
	return panelHeight
}

func (p *Panel) legendHeight() int {
	if !p.named() {
		return 0
	}
	perRow := panelWidth / nameWidth
	return (len(p.Lines)+perRow-1)/perRow*16 + 4
}

func (p *Panel) draw(b *strings.Builder) {
	height, top, last := p.height(), p.Top, p.From
	for _, l := range p.Lines {
		for k, x := range l.X {
			last = max(last, x)
			if p.Top == 0 {
				top = max(top, 1, l.Y[k])
			}
		}
	}
	fmt.Fprintf(b, `<text y="-8" xml:space="preserve">%s</text>`+"\n", html.EscapeString(p.Title))
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="none" stroke="#ccc"/>`+"\n", panelWidth, height)
	fmt.Fprintf(b, `<text x="-6" y="10" text-anchor="end">%s</text><text x="-6" y="%d" text-anchor="end">0</text>`+"\n", number(top), height)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end" fill="#666">%s</text>`+"\n", panelWidth, height+12, html.EscapeString(p.End))
	for i, l := range p.Lines {
		var points []string
		for k, x := range l.X {
			across := (x - p.From) / cmp.Or(last-p.From, 1)
			points = append(points, fmt.Sprintf("%.1f,%.1f", across*panelWidth, float64(height)*(1-min(l.Y[k]/top, 1))))
		}
		colour := colours[i%len(colours)]
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%d"/>`+"\n", strings.Join(points, " "), colour, 1+min(len(p.Lines)-1, 1))
		if p.named() {
			p.drawName(b, i, colour)
		}
	}
}

// number writes the value at the upper edge.
func number(top float64) string {
	if top < 10 {
		return fmt.Sprintf("%.2g", top)
	}
	return fmt.Sprintf("%.0f", top)
}

func (p *Panel) drawName(b *strings.Builder, i int, colour string) {
	perRow := panelWidth / nameWidth
	x, y := i%perRow*nameWidth, p.height()+28+i/perRow*16
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="14" height="3" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
		x, y-5, colour, x+20, y, html.EscapeString(p.Lines[i].Name))
}
