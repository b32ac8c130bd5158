package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/console"
)

// A picture of `sluice top` has no line that wraps, does not scroll, says what it leaves out, and
// shows what is not ready.
func TestO8_TopFitsTheScreen(t *testing.T) {
	t.Parallel()
	var v topView
	for i := range 40 {
		name := fmt.Sprintf("meta-llama/Llama-3.3-70B-Instruct-%02d", i)
		m, r := modelRow{Name: name, State: "ready"}, replicaRow{ID: name + "-0", Model: name, State: "ready", Address: "127.0.0.1:38601", Node: "gpu-node-17"}
		if i == 30 {
			m.State, r.State, r.Reason = "failed", "failed", strings.Repeat("通义千问 ", 20)
		}
		v.models.Models, v.replicas.Replicas = append(v.models.Models, m), append(v.replicas.Replicas, r)
	}
	v.conditions.Conditions = []condition.Condition{{Type: condition.ReplicaFailed, Subject: "x", Status: condition.True, Severity: condition.Error, Message: strings.Repeat("long ", 40)}}
	for _, size := range [][2]int{{80, 24}, {60, 12}, {200, 50}, {300, 200}, {20, 3}} {
		columns, rows := size[0], size[1]
		lines := v.fit(columns, rows)
		text := strings.Join(lines, "\n")
		if len(lines) >= rows {
			t.Errorf("%d lines on a screen of %d rows", len(lines), rows)
		}
		for _, line := range lines {
			if n := console.Columns(line); n > columns {
				t.Errorf("a line of %d columns on a screen of %d: %s", n, columns, line)
			}
		}
		if rows == 24 {
			for _, want := range []string{"gateway", "error: ReplicaFailed x: long", "MODEL ", "REPLICA ", "STATE", "failed", "more models: sluice status", "more replicas: sluice ps"} {
				if !strings.Contains(text, want) {
					t.Errorf("no %q on a screen of %v:\n%s", want, size, text)
				}
			}
			if strings.Count(text, "failed") != 2 {
				t.Errorf("the model or the replica that has failed is left out:\n%s", text)
			}
		}
		if rows == 200 && (strings.Contains(text, "more") || len(lines) != 3+1+1+1+41+1+41) {
			t.Errorf("%d lines on a large screen:\n%s", len(lines), text)
		}
	}
}
