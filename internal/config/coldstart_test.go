package config

import (
	"testing"
	"time"
)

// TestU8_ColdStart: the wait of requests and the limits of the load are apart. cold_start_timeout
// is another name of the wait.
func TestU8_ColdStart(t *testing.T) {
	t.Parallel()
	const model = "\nmodels:\n- name: a\n  task: text-generation\n  engine: sim\n  launcher: local\n"
	for _, tt := range []struct {
		text string
		want ColdStart
	}{
		{"", ColdStart{10 * time.Minute, 30 * time.Minute, 5 * time.Minute}},
		{"  cold_start_timeout: 1m\n", ColdStart{time.Minute, 30 * time.Minute, 5 * time.Minute}},
		{"  cold_start_timeout: 200ms\n", ColdStart{200 * time.Millisecond, 30 * time.Minute, 5 * time.Minute}},
		{"  cold_start_timeout: 0s\n", ColdStart{0, 30 * time.Minute, 5 * time.Minute}},
		{"  cold_start: {wait: 0s, load_timeout: 2h, stall: 10s}\n", ColdStart{0, 2 * time.Hour, 10 * time.Second}},
	} {
		c := parsed(t, model+tt.text)
		if got := c.Models[0].ColdStart; got != tt.want {
			t.Errorf("%q is %+v, want %+v", tt.text, got, tt.want)
		}
	}
}

func coldStartCases() []ruleCase {
	const model = "models:\n- name: a\n  task: text-generation\n  engine: sim\n"
	return []ruleCase{
		{"two waits", model + "  cold_start_timeout: 1m\n  cold_start: {wait: 2m}",
			[]string{"5: models[a].cold_start_timeout: is another name of cold_start.wait, which is set too: remove one of them"}},
		{"a wait longer than Envoy holds a request", model + "  cold_start: {wait: 2h}",
			[]string{"5: models[a].cold_start.wait: must be at most 55m0s, is 2h0m0s: Envoy holds a request for an hour at most"}},
		{"less than no wait, by its other name", model + "  cold_start_timeout: -1s", []string{"5: models[a].cold_start_timeout: must be at least 0s, is -1s"}},
		{"less than no wait", model + "  cold_start: {wait: -1s}", []string{"5: models[a].cold_start.wait: must be at least 0s, is -1s"}},
		{"no time to load", model + "  cold_start: {load_timeout: 0s}", []string{"5: models[a].cold_start.load_timeout: must be at least 1s, is 0s"}},
		{"servers of others", "models: [{name: a, launcher: upstream, upstreams: [http://h:1], cold_start: {wait: 1s}}]",
			[]string{"1: models[a].cold_start: has no effect with launcher: upstream, whose requests wait for admission.queue_timeout; remove it"}},
		{"nothing is started", "models: [{name: a, launcher: none, cold_start: {wait: 1s}}]",
			[]string{"1: models[a].cold_start: has no effect with launcher: none; remove it"}},
	}
}
