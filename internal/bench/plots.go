package main

import "github.com/sluice-gateway/sluice/internal/bench/report"

// plot returns an SVG with what requests and events cost against plain Envoy.
func (res *result) plot() string {
	requests := report.Chart{Title: "CPU of a request, divided by that of plain Envoy (median, least and greatest of the rounds)"}
	events := report.Chart{Title: "CPU of an event of a stream, divided by that of plain Envoy"}
	for _, by := range bys {
		requests.Names = append(requests.Names, by)
		for _, way := range ways {
			events.Names = append(events.Names, by+", "+wayNames[way])
		}
	}
	for _, r := range res.Rows {
		group := report.Group{Name: r.Title}
		if r.Events == 0 {
			for _, by := range bys {
				group.Bars = append(group.Bars, r.bar(by, "usage"))
			}
			requests.Groups = append(requests.Groups, group)
			continue
		}
		for _, by := range bys {
			for _, way := range ways {
				group.Bars = append(group.Bars, r.bar(by, way))
			}
		}
		events.Groups = append(events.Groups, group)
	}
	return report.Charts([]report.Chart{requests, events})
}

// bar returns the bar of a column. It is empty if the row lacks the column.
func (r *resultRow) bar(by, way string) report.Bar {
	if c := r.column(by, way); c != nil {
		return report.BarOf(c.against(&r.Columns[0], sample.total, quotient))
	}
	return report.Bar{}
}
