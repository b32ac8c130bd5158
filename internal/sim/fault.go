package sim

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FaultHeader is the request header that injects a fault.
const FaultHeader = "x-sim-fault"

// Fault is a combination of faults; the package comment lists them. The zero value is no fault.
type Fault struct {
	text  string
	parts []faultPart
}

// faultPart is one fault of a combination.
type faultPart struct {
	kind faultKind
	// afterEvents is the number of events before the fault takes effect; -1 if it is not given.
	afterEvents int
	// status is the HTTP status of faultStatus. retryAfter is that of apiError.
	status, retryAfter int
	// number is the value of faultLength, in bytes. text is that of faultType.
	number int
	text   string
	// pause is the length of a pause. 0 lasts until the client disconnects.
	pause time.Duration
}

// faultKind is the name of a fault.
type faultKind string

const (
	faultStatus    faultKind = "status"
	faultHang      faultKind = "hang"
	faultReset     faultKind = "reset-before-headers"
	faultExit      faultKind = "exit"
	faultSlow      faultKind = "slow"
	faultStall     faultKind = "stall"
	faultCut       faultKind = "cut"
	faultEOF       faultKind = "eof"
	faultError     faultKind = "error"
	faultMalformed faultKind = "malformed"
	faultHuge      faultKind = "huge"
	faultDuplicate faultKind = "duplicate"
	faultGzip      faultKind = "gzip"
	faultUnhealthy faultKind = "unhealthy"
	faultNone      faultKind = "none"

	faultClose         faultKind = "close"
	faultEarlyClose    faultKind = "early-close"
	faultLength        faultKind = "length"
	faultGarbage       faultKind = "garbage"
	faultType          faultKind = "type"
	faultInformational faultKind = "1xx"
	faultEndlessHeader faultKind = "endless-header"
	faultGzipBomb      faultKind = "gzip-bomb"
)

// argumentKind says what may follow the "=" of a fault.
type argumentKind int

const (
	argNone           argumentKind = iota
	argEvents                      // a number of events; 0 if omitted
	argEventsOptional              // the same, but -1 if omitted
	argEventsPause                 // a number of events and, after a colon, an optional duration
	argPauseOptional               // a duration; 0 if omitted
	argPause                       // a duration
	argStatus                      // an HTTP status from 400 to 599 and, after a colon, an optional number of seconds
	argNumber                      // a number other than 0
	argText                        // a text
)

// arguments are the kinds of the arguments of all faults.
var arguments = map[faultKind]argumentKind{
	faultStatus: argStatus, faultHang: argPauseOptional, faultSlow: argPause, faultStall: argEventsPause, faultLength: argNumber, faultType: argText,
	faultExit: argEventsOptional, faultDuplicate: argEventsOptional,
	faultCut: argEvents, faultEOF: argEvents, faultError: argEvents, faultMalformed: argEvents, faultHuge: argEvents,
	faultReset: argNone, faultGzip: argNone, faultUnhealthy: argNone, faultNone: argNone, faultClose: argNone, faultEarlyClose: argNone,
	faultGarbage: argNone, faultInformational: argNone, faultEndlessHeader: argNone, faultGzipBomb: argNone,
}

// ParseFault parses faults joined by commas, such as "slow=50ms,cut=3". An empty text is no fault.
func ParseFault(text string) (Fault, error) {
	f := Fault{text: strings.TrimSpace(text)}
	if f.text == "" {
		return Fault{}, nil
	}
	for part := range strings.SplitSeq(f.text, ",") {
		m, err := parseFaultPart(strings.TrimSpace(part))
		if err != nil {
			return Fault{}, err
		}
		f.parts = append(f.parts, m)
	}
	return f, nil
}

func parseFaultPart(part string) (faultPart, error) {
	name, value, given := strings.Cut(part, "=")
	m := faultPart{kind: faultKind(name), afterEvents: -1}
	arg, known := arguments[m.kind]
	if !known {
		return m, fmt.Errorf("unknown fault %q", name)
	}
	if given && arg == argNone {
		return m, fmt.Errorf("fault %s has no value: write %[1]s alone", name)
	}
	var err error
	switch {
	case arg == argStatus:
		err = m.parseStatus(value)
	case arg == argNumber:
		if m.number, err = strconv.Atoi(value); err != nil || m.number == 0 {
			err = fmt.Errorf("fault %s needs a number of bytes other than 0, is %q: write it as in length=-10", name, value)
		}
	case arg == argText:
		if m.text = value; value == "" {
			err = fmt.Errorf("fault %s needs a value: write it as in type=text/html", name)
		}
	case arg == argEvents && !given:
		m.afterEvents = 0
	case arg == argEvents || arg == argEventsOptional && given:
		m.afterEvents, err = parseEvents(name, value)
	case arg == argEventsPause:
		n, pause, paused := strings.Cut(value, ":")
		if m.afterEvents, err = parseEvents(name, n); err == nil && paused {
			m.pause, err = parsePause(name, pause)
		}
	case arg == argPause || arg == argPauseOptional && given:
		m.pause, err = parsePause(name, value)
	}
	return m, err
}

// parseStatus parses a status and its Retry-After.
func (m *faultPart) parseStatus(value string) (err error) {
	status, after, waits := strings.Cut(value, ":")
	if m.status, err = strconv.Atoi(status); err != nil || m.status < 400 || m.status > 599 {
		return fmt.Errorf("fault status needs a status from 400 to 599, is %q: write it as in status=503", status)
	}
	if !waits {
		return nil
	}
	if m.retryAfter, err = strconv.Atoi(after); err != nil || m.retryAfter < 0 {
		return fmt.Errorf("fault status needs a number of seconds after the colon, is %q: write it as in status=429:7", after)
	}
	m.retryAfter = cmp.Or(m.retryAfter, -1)
	return nil
}

func parseEvents(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("fault %s needs a number of events, is %q: write it as in %[1]s=3", name, text)
	}
	return n, nil
}

func parsePause(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("fault %s needs a positive duration such as 50ms, is %q", name, text)
	}
	return d, nil
}

// String returns the text that the fault was parsed from.
func (f Fault) String() string { return f.text }

// find returns the first part of that kind.
func (f Fault) find(k faultKind) (faultPart, bool) {
	i := slices.IndexFunc(f.parts, func(m faultPart) bool { return m.kind == k })
	if i < 0 {
		return faultPart{}, false
	}
	return f.parts[i], true
}

// has tells whether there is a part of that kind.
func (f Fault) has(k faultKind) bool {
	_, ok := f.find(k)
	return ok
}

// at tells whether there is a part of that kind that takes effect after that number of events.
func (f Fault) at(k faultKind, events int) bool {
	m, ok := f.find(k)
	return ok && m.afterEvents == events
}

// exitsAtStart tells whether the process must exit before it serves any request.
func (f Fault) exitsAtStart() bool { return f.at(faultExit, -1) }

// faultFor returns the fault for one request: that of its header, else the process-wide fault. The
// latter is used up by one.
func (e *Engine) faultFor(r *http.Request) (Fault, error) {
	own, err := ParseFault(r.Header.Get(FaultHeader))
	if err != nil {
		return Fault{}, badRequest(FaultHeader, "%s: %v", FaultHeader, err)
	}
	f := own
	if own.parts == nil {
		f = e.useActiveFault(r.URL.Path)
	}
	if f.has(faultExit) && e.config.Exit == nil {
		return Fault{}, badRequest(FaultHeader, "this engine is part of another program and cannot exit: use another fault")
	}
	return f, nil
}

// activeFault is the process-wide fault.
type activeFault struct {
	Fault
	// remaining is the number of requests that the fault still applies to. 0: all.
	remaining int
	// pathPrefix limits the fault to paths with this prefix. Empty: all paths for clients.
	pathPrefix string
}

// useActiveFault returns the process-wide fault for a request with that path, and uses it up by
// one.
func (e *Engine) useActiveFault(path string) Fault {
	e.faultMu.Lock()
	defer e.faultMu.Unlock()
	if !strings.HasPrefix(path, e.active.pathPrefix) {
		return Fault{}
	}
	f := e.active.Fault
	if e.active.remaining > 0 {
		if e.active.remaining--; e.active.remaining == 0 {
			e.active = activeFault{}
		}
	}
	return f
}

// activeFault returns the process-wide fault.
func (e *Engine) activeFault() activeFault {
	e.faultMu.Lock()
	defer e.faultMu.Unlock()
	return e.active
}

// setActiveFault replaces the process-wide fault.
func (e *Engine) setActiveFault(f activeFault) {
	e.faultMu.Lock()
	defer e.faultMu.Unlock()
	e.active = f
}
