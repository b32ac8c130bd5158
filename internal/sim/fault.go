package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FaultHeader is the request header that asks for a fault.
const FaultHeader = "x-sim-fault"

// Fault is one or several ways to misbehave; the package comment lists them. The zero value is none.
type Fault struct {
	text  string
	parts []misdeed
}

// misdeed is one part of a Fault.
type misdeed struct {
	kind   kind
	after  int           // events before it happens; -1: not said
	status int           // of kind status
	pause  time.Duration // 0: until the client leaves
}

type kind string

const (
	faultStatus    kind = "status"
	faultHang      kind = "hang"
	faultReset     kind = "reset-before-headers"
	faultExit      kind = "exit"
	faultSlow      kind = "slow"
	faultStall     kind = "stall"
	faultCut       kind = "cut"
	faultEOF       kind = "eof"
	faultError     kind = "error"
	faultMalformed kind = "malformed"
	faultHuge      kind = "huge"
	faultDuplicate kind = "duplicate"
	faultGzip      kind = "gzip"
	faultUnhealthy kind = "unhealthy"
	faultNone      kind = "none"
)

// argument says what may follow the "=" of a fault.
type argument int

const (
	noArgument  argument = iota
	events               // a number of events; 0 when left out
	eventsMaybe          // the same, but leaving it out means something else
	eventsPause          // a number of events and, behind a colon, a duration
	pauseMaybe           // a duration, may be left out
	pauseNeeded
	statusCode
)

// argumentOf is the grammar of each fault.
func argumentOf(k kind) (argument, bool) {
	switch k {
	case faultStatus:
		return statusCode, true
	case faultHang:
		return pauseMaybe, true
	case faultSlow:
		return pauseNeeded, true
	case faultStall:
		return eventsPause, true
	case faultExit, faultDuplicate:
		return eventsMaybe, true
	case faultCut, faultEOF, faultError, faultMalformed, faultHuge:
		return events, true
	case faultReset, faultGzip, faultUnhealthy, faultNone:
		return noArgument, true
	}
	return 0, false
}

// ParseFault reads faults joined by commas, as in "slow=50ms,cut=3". An empty text is no fault.
func ParseFault(text string) (Fault, error) {
	f := Fault{text: strings.TrimSpace(text)}
	if f.text == "" {
		return Fault{}, nil
	}
	for part := range strings.SplitSeq(f.text, ",") {
		m, err := parseMisdeed(strings.TrimSpace(part))
		if err != nil {
			return Fault{}, err
		}
		f.parts = append(f.parts, m)
	}
	return f, nil
}

func parseMisdeed(part string) (misdeed, error) {
	name, value, given := strings.Cut(part, "=")
	m := misdeed{kind: kind(name), after: -1}
	arg, known := argumentOf(m.kind)
	if !known {
		return m, fmt.Errorf("unknown fault %q", name)
	}
	if given && arg == noArgument {
		return m, fmt.Errorf("fault %s takes no value", name)
	}
	var err error
	switch {
	case arg == statusCode:
		if m.status, err = strconv.Atoi(value); err != nil || m.status < 400 || m.status > 599 {
			return m, fmt.Errorf("fault %s wants a status from 400 to 599, as in status=503", name)
		}
	case arg == events && !given:
		m.after = 0
	case arg == events || arg == eventsMaybe && given:
		m.after, err = parseEvents(name, value)
	case arg == eventsPause:
		n, pause, paused := strings.Cut(value, ":")
		if m.after, err = parseEvents(name, n); err == nil && paused {
			m.pause, err = parsePause(name, pause)
		}
	case arg == pauseNeeded || arg == pauseMaybe && given:
		m.pause, err = parsePause(name, value)
	}
	return m, err
}

func parseEvents(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("fault %s wants a number of events, as in %s=3", name, name)
	}
	return n, nil
}

func parsePause(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("fault %s wants a duration such as 50ms", name)
	}
	return d, nil
}

// String is the text the fault was made from.
func (f Fault) String() string { return f.text }

// find returns the first part of that kind.
func (f Fault) find(k kind) (misdeed, bool) {
	i := slices.IndexFunc(f.parts, func(m misdeed) bool { return m.kind == k })
	if i < 0 {
		return misdeed{}, false
	}
	return f.parts[i], true
}

// at returns the part of that kind if it is due after so many events.
func (f Fault) at(k kind, events int) (misdeed, bool) {
	m, ok := f.find(k)
	return m, ok && m.after == events
}

// exitsAtStart says that the process is to end by itself before it serves anything.
func (f Fault) exitsAtStart() bool {
	_, yes := f.at(faultExit, -1)
	return yes
}

// faultOf is the fault for one request: its own, else the process-wide one, of which it uses up one turn.
func (e *Engine) faultOf(r *http.Request) (Fault, error) {
	own, err := ParseFault(r.Header.Get(FaultHeader))
	if err != nil {
		return Fault{}, badRequest(FaultHeader, "%s: %v", FaultHeader, err)
	}
	f := own
	if own.parts == nil {
		f = e.nextFault(r.URL.Path)
	}
	if _, exits := f.find(faultExit); exits && e.config.Exit == nil {
		return Fault{}, badRequest(FaultHeader, "this engine is part of another program and cannot exit")
	}
	return f, nil
}

// standingFault is the process-wide fault.
type standingFault struct {
	Fault
	times int    // requests it is still for; 0: all
	path  string // what their paths begin with
}

// nextFault is the process-wide fault for a request to that path, of which it uses up one turn.
func (e *Engine) nextFault(path string) Fault {
	e.faultMu.Lock()
	defer e.faultMu.Unlock()
	if !strings.HasPrefix(path, e.fault.path) {
		return Fault{}
	}
	f := e.fault.Fault
	if e.fault.times > 0 {
		if e.fault.times--; e.fault.times == 0 {
			e.fault = standingFault{}
		}
	}
	return f
}

// standing is the process-wide fault.
func (e *Engine) standing() standingFault {
	e.faultMu.Lock()
	defer e.faultMu.Unlock()
	return e.fault
}

// setStanding changes the process-wide fault.
func (e *Engine) setStanding(f standingFault) {
	e.faultMu.Lock()
	defer e.faultMu.Unlock()
	e.fault = f
}
