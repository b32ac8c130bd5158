package custom

import (
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Types of conditions that we write. Others are left alone.
const (
	conditionAccepted = "Accepted"
	conditionReady    = "Ready"
)

// longestMessage is in bytes; the end of a list of thousand faults helps nobody.
const maxMessageBytes = 4096

// difference is what a merge patch must set in the status of an object so that it says what s says: nil when it does. A null takes a field away.
func (s Status) patchFor(status map[string]any, now time.Time) map[string]any {
	before, _ := status["conditions"].([]any)
	fields := map[string]any{
		"observedGeneration": s.Generation,
		"message":            optionalText(s.Message),
		"conditions":         s.conditions(before, now),
	}
	if s.Kind == Model {
		fields["phase"] = optionalText(s.Phase)
		fields["replicas"], fields["ready"], fields["desired"] = int64(s.Replicas), int64(s.Ready), int64(s.Desired)
		fields["replicasReady"] = strconv.Itoa(s.Ready) + "/" + strconv.Itoa(s.Desired)
	}
	for name, value := range fields {
		if !reflect.DeepEqual(status[name], value) {
			return fields
		}
	}
	return nil
}

// text is a text of a status; an empty one is left out.
func optionalText(s string) any {
	if s == "" {
		return nil
	}
	return truncate(s)
}

// conditions are those that were there before, with ours brought up to date.
func (s Status) conditions(before []any, now time.Time) []any {
	verdict := condition{kind: conditionAccepted, holds: s.Accepted, reason: "Valid"}
	if !s.Accepted {
		verdict.reason, verdict.message = "Invalid", s.Message
	}
	ours := []condition{verdict}
	if s.Kind == Model {
		c := condition{kind: conditionReady, holds: s.Phase == conditionReady, reason: s.Phase}
		if c.reason == "" {
			c.reason = "Unknown"
		}
		if s.Accepted {
			c.message = s.Message
		}
		ours = append(ours, c)
	}
	after := append([]any{}, before...)
	for _, c := range ours {
		after = c.setIn(after, s.Generation, now)
	}
	return after
}

// condition is one condition of an object, as all of Kubernetes has them.
type condition struct {
	kind            string
	holds           bool
	reason, message string
}

// put sets a condition in a list. The time is that at which it last began or ceased to hold.
func (c condition) setIn(list []any, generation int64, now time.Time) []any {
	value := map[string]any{
		"type": c.kind, "status": "False", "reason": c.reason, "message": truncate(c.message), "observedGeneration": generation,
		"lastTransitionTime": now.UTC().Format(time.RFC3339),
	}
	if c.holds {
		value["status"] = "True"
	}
	for i, old := range list {
		if old, ok := old.(map[string]any); ok && old["type"] == c.kind {
			if old["status"] == value["status"] {
				value["lastTransitionTime"] = old["lastTransitionTime"]
			}
			list[i] = value
			return list
		}
	}
	return append(list, value)
}

// cut bounds a text, between two characters.
func truncate(s string) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= maxMessageBytes {
		return s
	}
	end := maxMessageBytes - len("…")
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
