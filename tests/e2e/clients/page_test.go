package clients

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// screenshots has the test of the page write the pictures of docs/page.md.
var screenshots = flag.Bool("screenshots", false, "write the pictures of the operator's page to docs/images")

// Every view shows the values of the API under load, streams a chat, and is accessible, wide and
// narrow, light and dark, without an error in the console.
func TestE2E_E4_U17_O10_B8_AdminPageInChromium(t *testing.T) {
	t.Parallel()
	server := harness.StartEngine(t, map[string]string{"/v1/models": `{"data":[{"id":7},{"id":"qwen"},{"id":"other"}]}`})
	g := harness.Start(t, harness.SlowSims+"upstreams: [{url: "+server+", models: [q*]}]\n")
	settings := map[string]string{
		"EXPECT_UPSTREAM": strings.TrimPrefix(server, "http://"), "EXPECT_SEEN": "lists 2 models · 1 left out by the file · The server",
	}
	file, err := os.ReadFile(g.Config)
	if err != nil {
		t.Fatal(err)
	}
	settings["FILE"] = string(file)
	if *screenshots {
		settings["SCREENSHOTS"] = filepath.Join(testutil.Root(), "docs", "images")
		if err := os.MkdirAll(settings["SCREENSHOTS"], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	checkPage(t, g, settings)
}

// The page asks for a token, and works with the cookie of a login. A viewer sees no action.
func TestE2E_X12_O10_LoginOnThePage(t *testing.T) {
	t.Parallel()
	operator, viewer := authz.NewKey(), authz.NewKey()
	g := harness.Prepare(t, harness.SlowSims+`
admin_auth:
  tokens:
    - {name: ops, role: operator, hash: "`+operator.Hash+`"}
    - {name: board, role: viewer, hash: "`+viewer.Hash+`"}
`)
	g.AdminToken = operator.Secret
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	checkPage(t, g, map[string]string{"VIEWER_TOKEN": viewer.Secret})
}

// With 1,000 models and 10,000 requests the page has nodes for the rows in sight alone, and the
// filter, the order and the keyboard work.
func TestE2E_O10_PageWithLargeTables(t *testing.T) {
	t.Parallel()
	runPage(t, "pagelarge.mjs", map[string]string{})
}

// The page shows what is true in states that are rare. These are a refused key in the playground, a
// tab that nobody sees, servers of several models, and windows of many widths.
func TestE2E_O10_PageInRareStates(t *testing.T) {
	t.Parallel()
	runPage(t, "pagecases.mjs", map[string]string{})
}

// The menu of a narrow screen, the links of conditions, the heads of columns and rounded numbers
// are as their reader expects.
func TestE2E_O10_PageDetails(t *testing.T) {
	t.Parallel()
	runPage(t, "pagedetails.mjs", map[string]string{})
}

// checkPage opens the operator's page in Chromium while clients send requests. settings are further
// settings of the script.
func checkPage(t *testing.T, g *harness.Gateway, settings map[string]string) {
	t.Helper()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", false, 5, "hello"))
			}
		}
	}()
	for name, value := range map[string]string{
		"ADMIN_URL": g.Admin, "ADMIN_TOKEN": g.AdminToken, "EXPECT_MODEL": "chat", "EXPECT_REPLICA": "chat-2", "EDIT_MODEL": "chat",
	} {
		settings[name] = value
	}
	runPage(t, "page.mjs", settings)
}

// runPage runs a script of tests/clients that needs Chromium and its packages.
func runPage(t *testing.T, script string, settings map[string]string) {
	t.Helper()
	for _, name := range []string{"playwright-core", "axe-core"} {
		testutil.Tool(t, "node/node_modules/"+name)
	}
	settings["NODE_MODULES"] = filepath.Join(testutil.Root(), ".tools", "node", "node_modules")
	harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients", script)}, settings)
}
