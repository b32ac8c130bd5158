package harness

import (
	"fmt"

	"github.com/sluice-gateway/sluice/authz"
)

// OneSim is a configuration with one simulated replica that answers as fast as it can.
const OneSim = `
models:
  - name: chat
    aliases: [default-chat]
    task: text-generation
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 0s}
`

// TenantKeys makes a tenant with one key for each name. It returns the keys by name, and the
// section "tenants" of the configuration.
func TenantKeys(names ...string) (keys map[string]string, text string) {
	keys = map[string]string{}
	text = "tenants:\n"
	for _, name := range names {
		key := authz.NewKey()
		keys[name] = key.Secret
		text += fmt.Sprintf("  - {name: %s, keys: [%q]}\n", name, key.Hash)
	}
	return keys, text
}

// SlowSims is a configuration with three simulated replicas. Each token takes 20 ms.
const SlowSims = `
models:
  - name: chat
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 3, max: 3}
    variables: {prefill_rate: 0, token_interval: 20ms, batch_slowdown: 0, max_num_seqs: 4096}
`
