package headers

import (
	"bytes"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = flag.Bool("update", false, "write docs/headers.md")

// TestX14_StrippedTables checks what the rest of the gateway relies on.
func TestX14_StrippedTables(t *testing.T) {
	for _, table := range [][]Stripped{FromClients(), FromEngines()} {
		seen := map[string]bool{}
		for _, h := range table {
			if h.Name != strings.ToLower(h.Name) || strings.ContainsAny(h.Name, "_: ") || h.Why == "" || seen[h.Name] {
				t.Errorf("bad row %+v", h)
			}
			seen[h.Name] = true
		}
	}
	for _, name := range []string{"x-original-url", "x-http-method-override", "x-rewrite-url", "cookie", "authorization", "x-api-key", "api-key",
		"x-data-parallel-rank", "x-smg-target-worker", "openai-organization", "openai-project", "x-hf-bill-to", "x-vllm-priority", "x-override-rid",
		"x-prefiller-host-port"} {
		if !IsStripped(name) || slices.Contains(Early(), name) == slices.Contains(Late(), name) {
			t.Errorf("%s reaches engines", name)
		}
	}
	for _, name := range []string{"x-portkey-config", "x-portkey-custom-host", "cf-aig-byok-alias", "x-bf-vk", "x-pass-x-api-key", "helicone-target-url",
		"x-litellm-api-key"} {
		if !IsStripped(name) {
			t.Errorf("%s reaches engines", name)
		}
	}
	for _, name := range []string{"content-type", "accept", "traceparent", "user-agent", "x-forwarded-for", "anthropic-version"} {
		if IsStripped(name) {
			t.Errorf("%s does not reach engines", name)
		}
	}
	if !slices.Contains(StrippedFromEngines(), "set-cookie") {
		t.Error("set-cookie reaches clients")
	}
}

// TestX14_StrippedDocument holds docs/headers.md to the tables.
func TestX14_StrippedDocument(t *testing.T) {
	testutil.Golden(t, "../../docs/headers.md", string(document()), *update)
}

// document returns the text of docs/headers.md.
func document() []byte {
	var b bytes.Buffer
	b.WriteString("# Headers that do not cross the gateway\n\n" +
		"This page is generated from `internal/headers/stripped.go` (`go test ./internal/headers -update`).\n\n" +
		"## Of clients\n\nEngines never get these headers of a client, nor any header whose name has an underscore or begins with\n" +
		"`x-envoy-`, `x-sluice-`, `" + strings.Join(prefixesFromClients[:], "`, `") + "`. The last six would choose\n" +
		"the provider, its host, the model or the account at another gateway: Portkey, Helicone, Cloudflare, Bifrost or LiteLLM. The headers that the file sets for an upstream are added afterwards, so they may have\n" +
		"these names. The address of the client is in `x-forwarded-for`, to which Envoy adds it.\n\n" +
		"| header | why | read by the gateway |\n| --- | --- | --- |\n")
	var rows [][2]string
	for _, h := range FromClients() {
		read := "no"
		if h.Late {
			read = "yes"
		}
		rows = append(rows, [2]string{"`" + h.Name + "`", "It " + h.Why + ". | " + read})
	}
	b.WriteString(testutil.GroupRows(rows))
	b.WriteString("\n## Of engines\n\nClients never get these headers of an engine, nor any header whose name begins with `x-sluice-` or `x-envoy-`.\n" +
		"A response with status 101 that nobody has asked for becomes a 502. So does a redirect (3xx), because clients would follow it\n" +
		"with the prompt, past the gateway.\n\n" +
		"| header | why |\n| --- | --- |\n")
	rows = nil
	for _, h := range FromEngines() {
		rows = append(rows, [2]string{"`" + h.Name + "`", "It " + h.Why + "."})
	}
	b.WriteString(testutil.GroupRows(rows))
	return b.Bytes()
}
