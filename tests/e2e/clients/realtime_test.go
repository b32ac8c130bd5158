package clients

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// OpenAI's own realtime client holds conversations of text over the path that Sluice's own protocol
// has, too.
func TestE2E_R8_B9_OpenAIRealtime(t *testing.T) {
	t.Parallel()
	g, settings := managedClients(t)
	settings["MODEL"], settings["REALTIME_URL"] = "auto", "ws://"+strings.TrimPrefix(g.URL, "http://")+"/v1/realtime"
	harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/realtime_openai.py")}, settings)
	g.AwaitIdle("auto")
}
