// Package console shows a person at a terminal what a gateway does. Command sluice makes a Console
// when its stderr is a terminal, and internal/gateway runs it. The Console shows where the gateway
// listens, which models become ready and how far they are, and what a stop waits for. Lines of the
// log appear between its own.
//
// A Console reads the State of the gateway at an interval and prints what has changed. So it needs
// no events, and a gateway without a terminal pays nothing.
package console

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// interval is how often the state is read.
	interval = 100 * time.Millisecond
	// maxProgress is how many models that are not ready are shown below the last line.
	maxProgress = 6
	// maxNamed is how many models may have lines of their own. With more, only their number counts.
	maxNamed = 20
)

// State is what a gateway tells its console.
type State struct {
	// Title names the program with its version, and the configuration. It is the first line.
	Title string
	// API and Page are the URLs of clients and of the operator's page.
	API, Page string
	// Serving says that the gateway takes requests. Waiting says why it does not.
	Serving bool
	Waiting string
	// Models are all models, sorted by name.
	Models []Model
	// Draining says that the gateway stops. Until is when requests are cut off.
	Draining bool
	Until    time.Time
	// Requests is how many requests run, Streams how many of them are streams.
	Requests, Streams int
}

// Model is a model as the console shows it.
type Model struct {
	Name string
	// Ready is how many replicas get requests, Needed how many there should be.
	Ready, Needed int
	// Progress says how far the next replica is: its weights, or its last log line.
	Progress string
	// Fault says why the model has no replica. It is empty while a start goes on.
	Fault string
}

// isReady reports whether the model has the replicas that it needs.
func (m *Model) isReady() bool { return m.Ready >= m.Needed }

// Console prints the State of one gateway to a Screen. Make it with New.
type Console struct {
	screen  *Screen
	started time.Time
	// titled, serving, ready and draining say which lines stand there.
	titled, serving, ready, draining bool
	// stood is what was printed of each model last, since is when it was first not ready.
	stood map[string]string
	since map[string]time.Time
}

// New returns a Console that has printed nothing. It counts the time until the gateway is ready
// from now.
func New(screen *Screen) *Console {
	return &Console{screen: screen, started: time.Now(), stood: map[string]string{}, since: map[string]time.Time{}}
}

// Run prints what changes in the state until ctx ends. It returns nil.
func (c *Console) Run(ctx context.Context, read func() State) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	defer c.screen.SetStatus()
	for {
		c.show(read())
		select {
		case <-ctx.Done():
			if c.show(read()); c.draining {
				c.screen.Printf("stopped\n")
			}
			return nil
		case <-tick.C:
		}
	}
}

// show prints what is new in the state.
func (c *Console) show(s State) {
	if !c.titled {
		c.titled = true
		c.screen.Printf("%s\n", c.screen.bold(s.Title))
	}
	if s.Draining {
		c.showDrain(&s)
		return
	}
	if s.Serving && !c.serving {
		c.serving = true
		c.screen.Printf("  API   %s\n  page  %s\n", s.API, s.Page)
	}
	waiting := c.showModels(s.Models)
	if s.Serving && len(waiting) == 0 && !c.ready {
		c.ready = true
		c.screen.Printf("%s in %s, Ctrl-C stops the gateway\n", c.screen.green("ready"), took(time.Since(c.started)))
	}
	c.screen.SetStatus(c.progress(&s, waiting)...)
}

// showModels prints a line for each model that has become ready, or that has a new fault. It
// returns the models that are not ready.
func (c *Console) showModels(models []Model) (waiting []Model) {
	for _, m := range models {
		if !m.isReady() {
			waiting = append(waiting, m)
			if _, known := c.since[m.Name]; !known {
				c.since[m.Name] = time.Now()
			}
		}
		if now := c.stands(&m); now != "" && now != c.stood[m.Name] {
			c.printModel(&m, now, len(models))
		}
		if m.isReady() {
			delete(c.since, m.Name)
		}
	}
	return waiting
}

// stands returns what a line says of the model. It is empty for a model that starts, and for one
// that needs no replica.
func (c *Console) stands(m *Model) string {
	switch {
	case m.Fault != "":
		return "fault: " + m.Fault
	case m.isReady() && m.Needed > 0:
		return "ready"
	}
	return ""
}

// printModel prints the line of one model among so many.
func (c *Console) printModel(m *Model, now string, models int) {
	c.stood[m.Name] = now
	since, wasWaiting := c.since[m.Name]
	switch {
	case m.Fault != "":
		c.screen.Printf("  %s  %s\n", m.Name, c.screen.red(m.Fault))
	case models > maxNamed:
	case wasWaiting:
		c.screen.Printf("  %s  %s, %s, %s\n", m.Name, c.screen.green("ready"), count(m.Ready, "replica"), took(time.Since(since)))
	default:
		c.screen.Printf("  %s  %s, %s\n", m.Name, c.screen.green("ready"), count(m.Ready, "replica"))
	}
}

// progress returns the lines below the last one: what is waited for.
func (c *Console) progress(s *State, waiting []Model) (lines []string) {
	if !s.Serving && s.Waiting != "" {
		lines = append(lines, "  "+s.Waiting)
	}
	if len(s.Models) > maxNamed && len(waiting) > 0 {
		lines = append(lines, fmt.Sprintf("  %d of %d models are ready", len(s.Models)-len(waiting), len(s.Models)))
	}
	for i, m := range waiting {
		if i == maxProgress {
			return append(lines, fmt.Sprintf("  and %s more", count(len(waiting)-i, "model")))
		}
		line := fmt.Sprintf("  %s  %d of %s", m.Name, m.Ready, count(m.Needed, "replica"))
		if waited := time.Since(c.since[m.Name]); waited >= time.Second { // whole seconds: fewer changes
			line += fmt.Sprintf(", %s", waited.Truncate(time.Second))
		}
		if m.Progress != "" {
			line += ", " + m.Progress
		}
		lines = append(lines, line)
	}
	return lines
}

// showDrain shows what a stop waits for.
func (c *Console) showDrain(s *State) {
	if !c.draining {
		c.draining = true
		c.screen.Printf("stopping\n")
	}
	if s.Requests == 0 {
		c.screen.SetStatus("  the processes end")
		return
	}
	what := "request"
	if s.Streams == s.Requests {
		what = "stream"
	}
	left := max(0, time.Until(s.Until)).Round(time.Second)
	c.screen.SetStatus(fmt.Sprintf("  %s, %s left, Ctrl-C again ends %s", runs(s.Requests, what), left, them(s.Requests)))
}

// took writes a duration for people: 0.8 s, 12 s, 3m10s.
func took(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// count writes a number with its noun: 1 replica, 3 replicas.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprint(n, " ", noun, "s")
}

// runs writes that so many run: 1 stream runs, 3 streams run.
func runs(n int, noun string) string {
	if n == 1 {
		return count(n, noun) + " runs"
	}
	return count(n, noun) + " run"
}

// them is the pronoun of so many.
func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// plain returns what others have written, such as a log line of an engine, without characters that
// a terminal would obey.
func plain(text string) string { return strings.TrimRight(Printable(text), " ") }

// Printable returns the text on one line, with a space for each character that a terminal would
// obey. Those are control characters and marks that change the direction of text (Unicode's
// Bidi_Control). Such a mark could make an id look like another one. Clients choose some of what is
// shown.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
}
