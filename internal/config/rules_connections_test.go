package config

import (
	"strings"
	"testing"
)

// TestX1_ConnectionRules checks faults of the budgets of connections, uploads and headers.
func TestX1_ConnectionRules(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"connections: {trusted_proxies: [10.0.0.1, lb.example]}": "connections.trusted_proxies[1]: must be an address or a network such as 10.0.0.0/24, is lb.example",
		"connections: {max: -1}":                                 "connections.max: must be at least 0",
		"connections: {first_request: 1ms}":                      "connections.first_request: must be at least 1s",
		"upload: {max_bytes: 1MiB}":                              "upload.max_bytes: must be at least max_body (32MiB), is 1MiB",
		"envoy: {memory: 64MiB}":                                 "envoy.memory: must be at least 64MiB and twice max_body (32MiB), is 64MiB",
		"max_header_bytes: 2MiB":                                 "max_header_bytes: must be at most 1MiB, is 2MiB",
		"max_headers: 5":                                         "max_headers: must be at least 20, is 5",
	} {
		if faults := faultsOf(t, file); len(faults) != 1 || !strings.Contains(faults[0], want) {
			t.Errorf("%s\n%q, want %q", file, faults, want)
		}
	}
}
