package supervise

import (
	"cmp"
	"strings"
	"time"
)

// BackOff says how long a replica that failed waits for its next start.
type BackOff struct {
	// First is the pause after the first failure. It doubles after each further failure. 0 means 1
	// s.
	First time.Duration
	// Max is the longest pause. 0 means 300 s.
	Max time.Duration
	// Reset is how long a replica must have been ready for its earlier failures to be forgotten. 0
	// means 60 s.
	Reset time.Duration
}

// After returns the pause after this number of failures in a row.
func (b BackOff) After(failures int) time.Duration {
	pause := min(b.First, b.Max)
	for range failures - 1 {
		if pause *= 2; pause >= b.Max {
			return b.Max
		}
	}
	return pause
}

// WithDefaults replaces zero values by their defaults.
func (b BackOff) WithDefaults() BackOff {
	return BackOff{First: cmp.Or(b.First, time.Second), Max: cmp.Or(b.Max, 300*time.Second), Reset: cmp.Or(b.Reset, time.Minute)}
}

// SaysInUse reports whether the text is an error about an address in use.
func SaysInUse(reason string) bool {
	reason = strings.ToLower(reason)
	for _, words := range []string{"address already in use", "address in use", "eaddrinuse"} {
		if strings.Contains(reason, words) {
			return true
		}
	}
	return false
}

// WithLog appends the last log lines to a reason.
func WithLog(text string, lines []string) string {
	if len(lines) == 0 {
		return text
	}
	return text + "; its log ends: " + strings.Join(lines, " | ")
}
