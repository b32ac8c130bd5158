package config

import (
	"strings"
	"testing"
)

// TestStreamRules checks faults of stream, moderation, tracing and peers.
func TestStreamRules(t *testing.T) {
	t.Parallel()
	const model = "models: [{name: a, engine: sim, task: text-generation, "
	const rule = "models: [{name: a, engine: sim, task: text-generation}]\nmoderation: [{name: r, "
	for file, want := range map[string]string{
		model + "stream: {mode: native, heartbeat: 15s}}]":                 "models[a].stream.heartbeat: has no effect with mode: native",
		model + "stream: {mode: native, inject_usage: true}}]":             "models[a].stream.inject_usage: has no effect with mode: native",
		model + "stream: {sample: 1.5}}]":                                  "models[a].stream.sample: must be between 0 and 1, is 1.5",
		model + "stream: {heartbeat: 1ms}}]":                               "models[a].stream.heartbeat: must be at least 100ms",
		model + "stream: {mode: other}}]":                                  "models[a].stream.mode: must be",
		model + "protocol: grpc, stream: {mode: native}}]":                 "models[a].stream.mode: must be managed or auto with protocol: grpc, is native",
		model + "protocol: smtp}]":                                         "models[a].protocol: must be",
		rule + "patterns: ['(']}]":                                         "moderation[r].patterns[0]: must be a regular expression (RE2): ",
		rule + "models: [b], literals: [x]}]":                              "moderation[r].models[0]:",
		rule + "tenants: [b], literals: [x]}]":                             "moderation[r].tenants[0]: there is no tenant b",
		rule + "window: 1KiB}]":                                            "moderation[r]: forbids nothing",
		rule + "hook: {url: 'ftp://h'}}]":                                  "moderation[r].hook.url: must be a URL",
		rule + "hook: {url: 'http://h', on_failure: perhaps}}]":            "moderation[r].hook.on_failure: must be",
		"tracing: {endpoint: nowhere}":                                     "tracing.endpoint: must be a URL",
		"tracing: {endpoint: 'http://h', sample: 2}":                       "tracing.sample: must be between 0 and 1",
		"tracing: {endpoint: 'http://h', trace_url: 'http://h/trace/'}":    "tracing.trace_url: must be a URL with {trace_id} in it",
		"tracing: {endpoint: 'http://h', trace_url: 'file:///{trace_id}'}": "tracing.trace_url: must be a URL with {trace_id} in it",
		"tracing: {}":           "tracing.endpoint: required",
		"peers: 127.0.0.1:9444": "peers: has no effect without redis",
		"redis: redis://127.0.0.1:6379\npeers: 0.0.0.0:9444":                       "peers: must be the address that the other gateways reach this one by, is 0.0.0.0:9444",
		"redis: redis://127.0.0.1:6379\nlisten: 127.0.0.1:80\npeers: 127.0.0.1:80": "peers: 127.0.0.1:80 is also the address of another listener",
	} {
		if faults := faultsOf(t, file); len(faults) != 1 || !strings.Contains(faults[0], want) {
			t.Errorf("%s\n%q, want %q", file, faults, want)
		}
	}
}
