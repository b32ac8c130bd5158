package harness

import (
	"fmt"
	"strings"

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

// LastingSims is SlowSims with replicas that need 100 seconds for LastingTokens tokens. A test
// keeps streams as long as it needs them and ends them by FinishAnswers.
var LastingSims = Lasting(SlowSims)

// LastingTokens is the number of tokens of an answer that lasts.
const LastingTokens = 1000

// Lasting returns the configuration with 100 ms for each token instead of 20 ms.
func Lasting(config string) string {
	return strings.ReplaceAll(config, "token_interval: 20ms", "token_interval: 100ms")
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
