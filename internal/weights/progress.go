package weights

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Progress says how far a fetch is.
type Progress struct {
	// Done and Total are bytes of the files. Done includes what was there already. Total is 0 while
	// the hub is asked what to fetch.
	Done, Total int64
	// Trouble says why and when the hub is asked again what to fetch. It is empty if there is none.
	Trouble string `json:",omitempty"`
	// Waiting says that another fetch, maybe of another process, does all the work that is left.
	Waiting bool
	// Rate is what has arrived in a second, over the last rateWindow reports, in bytes.
	Rate int64
}

// maxLeft is the longest time that String tells. A transfer that nearly stands still foretells
// nothing, and thousands of years are more than a time.Duration holds.
const maxLeft = 100 * time.Hour

// String returns a line for people.
func (p Progress) String() string {
	switch {
	case p.Trouble != "":
		return "asking the hub what to fetch: " + p.Trouble
	case p.Total == 0:
		return "asking the hub what to fetch"
	}
	text := fmt.Sprintf("fetching weights: %s of %s (%d %%)", FormatBytes(p.Done), FormatBytes(p.Total), 100*p.Done/p.Total)
	if p.Rate <= 0 {
		return text
	}
	text += fmt.Sprintf(", %s/s", FormatBytes(p.Rate))
	if left := float64(p.Total-p.Done) / float64(p.Rate); left < maxLeft.Seconds() {
		text += fmt.Sprintf(", %v left", time.Duration(left*float64(time.Second)).Round(time.Second))
	}
	return text
}

// FormatBytes writes a number of bytes with its unit, such as 1.2 GiB.
func FormatBytes(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/(1<<10), 0
	for value >= 1000 && unit < 3 {
		value, unit = value/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %s", value, []string{"KiB", "MiB", "GiB", "TiB"}[unit])
}

// rateWindow is the number of reports over which the rate is an average.
const rateWindow = 10

// meter adds up what the downloads of one fetch have done.
type meter struct {
	total    int64
	counters []counter
	// working counts the downloads that request or check content.
	working atomic.Int32
}

// counter is what one download has done. Its methods may be called from any goroutine.
type counter struct {
	// done is how many bytes of the file are there.
	done atomic.Int64
	// arrived is how many bytes have come while this fetch ran, for the rate. It also counts what
	// another process fetched meanwhile.
	arrived atomic.Int64
}

// found sets the number of bytes that are there already.
func (c *counter) found(n int64) { c.done.Store(n) }

// add counts bytes that have arrived.
func (c *counter) add(n int64) {
	c.done.Add(n)
	c.arrived.Add(n)
}

// see sets the number of bytes that another process or fetch has brought.
func (c *counter) see(n int64) {
	if before := c.done.Swap(n); before > 0 && n > before {
		c.arrived.Add(n - before)
	}
}

func newMeter(files []File) *meter {
	return &meter{total: totalSize(files), counters: make([]counter, len(files))}
}

func (m *meter) counter(i int) *counter { return &m.counters[i] }

func (m *meter) sum() (done, arrived int64) {
	for i := range m.counters {
		done += m.counters[i].done.Load()
		arrived += m.counters[i].arrived.Load()
	}
	return done, arrived
}

// run reports at once, every so often, and once more when stop is called. stop waits until no
// report runs.
func (m *meter) run(every time.Duration, report func(Progress)) (stop func()) {
	if report == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		var last []int64 // what had arrived at the last reports
		for {
			done, arrived := m.sum()
			last = append(last, arrived)
			last = last[max(0, len(last)-rateWindow-1):]
			p := Progress{Done: min(done, m.total), Total: m.total, Waiting: m.working.Load() == 0}
			if n := len(last) - 1; n > 0 {
				p.Rate = int64(float64(last[n]-last[0]) / (float64(n) * every.Seconds()))
			}
			report(p)
			select {
			case <-quit:
				return
			case <-ticker.C:
			}
		}
	})
	return func() { close(quit); running.Wait() }
}
