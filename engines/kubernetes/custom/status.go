package custom

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Types of the conditions that the package writes. It keeps conditions of other types.
const (
	conditionAccepted = "Accepted"
	conditionReady    = "Ready"
)

// fieldAcceptedSpec is the field of the status with Object.Accepted. It is a text, because a merge
// patch of an object would keep the fields that the new spec lacks.
const fieldAcceptedSpec = "acceptedSpec"

// maxMessageBytes limits messages.
const maxMessageBytes = 4096

// patchFor returns the merge patch that makes an object's status equal to s, or nil if it is equal
// already but for the ignored fields. A null removes a field.
func (s Status) patchFor(status map[string]any, ignored []string, now time.Time) map[string]any {
	before, _ := status["conditions"].([]any)
	fields := map[string]any{
		"observedGeneration": s.Generation,
		"message":            optionalText(s.Message),
		"conditions":         s.conditions(before, now),
	}
	if len(s.InForce) > 0 {
		fields[fieldAcceptedSpec] = string(s.InForce)
	}
	if s.Kind == Model {
		fields["phase"] = optionalText(s.Phase)
		fields["replicas"], fields["ready"], fields["desired"] = int64(s.Replicas), int64(s.Ready), int64(s.Desired)
		fields["selector"] = optionalText(s.Selector)
		fields["replicasReady"] = strconv.Itoa(s.Ready) + "/" + strconv.Itoa(s.Desired)
	}
	for name, value := range fields {
		if !slices.Contains(ignored, name) && !reflect.DeepEqual(status[name], value) {
			return fields
		}
	}
	return nil
}

// optionalText returns the text of a field, or nil for an empty text.
func optionalText(s string) any {
	if s == "" {
		return nil
	}
	return truncate(s)
}

// conditions returns the existing conditions with those of this package replaced.
func (s Status) conditions(before []any, now time.Time) []any {
	acceptance := condition{kind: conditionAccepted, holds: s.Accepted, reason: "Valid"}
	if !s.Accepted {
		acceptance.reason, acceptance.message = "Invalid", s.Message
	}
	own := []condition{acceptance}
	if s.Kind == Model {
		c := condition{kind: conditionReady, holds: s.Phase == conditionReady, reason: s.Phase}
		c.reason = cmp.Or(c.reason, "Unknown")
		if s.Accepted {
			c.message = s.Message
		}
		own = append(own, c)
	}
	after := append([]any{}, before...)
	for _, c := range own {
		after = c.setIn(after, s.Generation, now)
	}
	return after
}

// condition is a condition of a Kubernetes object.
type condition struct {
	kind            string
	holds           bool
	reason, message string
}

// setIn replaces the condition in the list, or adds it. lastTransitionTime changes only with the
// condition's status.
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

// truncate limits a text to maxMessageBytes without cutting a character.
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
