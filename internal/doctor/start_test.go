package doctor

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
)

// TestExamineAccessLog: a gateway does not start without the file of its access log.
func TestExamineAccessLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "there")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inner := filepath.Join(dir, "a", "inner")
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	link("to inner", inner)
	link("a/inner/to sibling", "../../b/new")
	if err := os.Mkdir(filepath.Join(dir, "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Finding{
		"":                                     {},
		file:                                   {Level: OK, Says: "can be written"},
		filepath.Join(dir, "new"):              {Level: OK, Says: "can be made"},
		filepath.Join(dir, "no folder", "new"): {Level: Fault, Says: "cannot be made"},
		filepath.Join(file, "new"):             {Level: Fault, Says: "not a directory"},
		dir:                                    {Level: Fault, Says: "is a directory"},
		link("to new", "new"):                  {Level: OK, Says: "can be made"},
		link("to no folder", "no folder/new"):  {Level: Fault, Says: "cannot be made"},
		filepath.Join(dir, "to inner", "to sibling"): {Level: OK, Says: "can be made"}, // ".." is that of the folder a/inner
		link("in a round", "in a round"):             {Level: Fault, Says: "too many levels"},
	} {
		e := &examination{Options: Options{Config: &config.Config{AccessLog: config.AccessLog{Path: path}}}}
		e.accessLog()
		var got Finding
		if len(e.found) > 0 {
			got = e.found[0]
		}
		if got.Level != want.Level || !strings.Contains(got.Says, want.Says) || (got.Hint != "") != (want.Level == Fault) {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("doctor has made the file")
	}
}

// TestExamineSigningKeys: without the keys of its provider a gateway verifies no token.
func TestExamineSigningKeys(t *testing.T) {
	t.Parallel()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	}))
	t.Cleanup(provider.Close)
	for url, want := range map[string]Finding{
		"":                        {},
		provider.URL + "/keys":    {Level: OK, Says: "has keys"},
		provider.URL + "/other":   {Level: Fault, Says: "404", Hint: "correct the URL"},
		"http://127.0.0.1:1/jwks": {Level: Fault, Says: "refused", Hint: "identity provider"},
	} {
		e := &examination{Options: Options{Config: &config.Config{Auth: config.Auth{JWT: &config.JWT{JWKSURL: url}}}}}
		e.signingKeys(t.Context())
		var got Finding
		if len(e.found) > 0 {
			got = e.found[0]
		}
		if got.Level != want.Level || !strings.Contains(got.Says, want.Says) || !strings.Contains(got.Hint, want.Hint) {
			t.Errorf("%s: %+v, want %+v", url, got, want)
		}
	}
	e := &examination{Options: Options{Config: &config.Config{}}}
	if e.signingKeys(t.Context()); len(e.found) > 0 {
		t.Errorf("without auth.jwt: %+v", e.found)
	}
}
