package gateway

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
)

// The command that operators see is one that a shell reads as the same words, without secrets.
func TestU11_TheCommandIsShownWithoutSecrets(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("f", []byte(`models:
  - name: chat
    engine: vllm
    version: 0.11.2
    source: {name: org/model}
    variables: {max_num_seqs: 8}
    env: {MY_SECRET: hunter2hunter2}
    args: [--hf-token, "hf it's", --x-key=a b, "it's", "$HOME", "", "prefix-hunter2hunter2", --api-timeout, "3"]
  - {name: exact, engine: vllm, version: v0.11.0, source: {name: org/model}}
`))
	if err != nil {
		t.Fatal(err)
	}
	r := engines.Replica{ID: "chat-0", Model: "chat", Address: netip.MustParseAddrPort("127.0.0.1:9001")}
	const want = `vllm serve org/model --host 127.0.0.1 --port 9001 --served-model-name chat --max-num-seqs 8 ` +
		`--hf-token … --x-key=… 'it'\''s' '$HOME' '' prefix-… --api-timeout 3`
	if diff := cmp.Diff(want, replicaCommand(c, "sluice", r)); diff != "" {
		t.Error(diff)
	}
	if got := replicaCommand(c, "sluice", engines.Replica{Model: "chat"}); got != "" {
		t.Errorf("a replica that waits: %s", got)
	}

	g := new(Gateway)
	g.settings.current.Store(c)
	all := g.versionConditions()
	if len(all) != 1 || all[0].Type != condition.VersionNotListed || all[0].Subject != "chat" ||
		all[0].Message != "Model chat names vllm 0.11.2. The newest version at or below it in the catalogue is 0.11." {
		t.Errorf("conditions: %+v", all)
	}
}
