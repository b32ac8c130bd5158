package admin

import (
	"context"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestHosts: a listener on a loopback address refuses every request whose Host is not a loopback
// name, even for /healthz.
func TestHosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listen, host string
		status       int
	}{
		{"127.0.0.1:9090", "127.0.0.1:9090", 200},
		{"127.0.0.1:9090", "localhost:9090", 200},
		{"127.0.0.1:9090", "LOCALHOST.", 200},
		{"127.0.0.1:9090", "sluice.localhost:1234", 200}, // through a tunnel
		{"127.0.0.1:9090", "[::1]:9090", 200},
		{"127.0.0.1:9090", "[::1]", 200},
		{"127.0.0.1:9090", "[::ffff:127.0.0.1]:9090", 200},
		{"127.0.0.1:9090", "", 200},
		{"[::1]:9090", "evil.example:9090", 403},
		{"localhost:9090", "evil.example", 403},
		{"127.0.0.1:9090", "localhost.evil.example", 403},
		{"127.0.0.1:9090", "127.0.0.1.evil.example:9090", 403},
		{"127.0.0.1:9090", "evillocalhost", 403},
		{"127.0.0.1:9090", "10.0.0.1:9090", 403},
		{"127.0.0.1:9090", "0.0.0.0:9090", 403},
		{"0.0.0.0:9090", "gateway.internal:9090", 200},
		{":9090", "gateway.internal:9090", 200},
		{"10.0.0.1:9090", "10.0.0.1:9090", 200},
	} {
		cfg := newConfig()
		cfg.Listen = c.listen
		h := New(cfg)
		for _, path := range []string{"/", "/healthz", "/metrics", "/api/v1/models"} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("GET", path, nil)
			r.Host = c.host
			h.ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("on %s, Host %q, %s: status %d, want %d", c.listen, c.host, path, w.Code, c.status)
			}
		}
	}
}

// TestMethods: endpoints that change state accept only POST or PATCH of JSON, from the page itself
// or from a client that is no browser. All others accept only GET and HEAD.
func TestMethods(t *testing.T) {
	t.Parallel()
	json := "application/json"
	for _, c := range []struct {
		name, method, path, media string
		header                    [2]string
		status                    int
	}{
		{"by hand", "POST", "/api/v1/reload", json, [2]string{}, 200},
		{"the page", "POST", "/api/v1/reload", json, [2]string{"Origin", "http://localhost:9090"}, 200},
		{"the page, as browsers say it", "POST", "/api/v1/reload", json, [2]string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"another site", "POST", "/api/v1/reload", json, [2]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"another port", "POST", "/api/v1/reload", json, [2]string{"Sec-Fetch-Site", "same-site"}, 403},
		{"another origin", "POST", "/api/v1/reload", json, [2]string{"Origin", "http://localhost:3000"}, 403},
		{"no origin at all", "POST", "/api/v1/reload", json, [2]string{"Origin", "null"}, 403},
		{"a form", "POST", "/api/v1/reload", "text/plain", [2]string{}, 415},
		{"no type", "POST", "/api/v1/reload", "", [2]string{}, 415},
		{"a link", "GET", "/api/v1/reload", "", [2]string{}, 405},
		{"a tenant's limits by hand", "PATCH", "/api/v1/tenants/acme/limits", json, [2]string{}, 200},
		{"limits by hand", "PATCH", "/api/v1/models/chat/limits", json, [2]string{}, 200},
		{"limits, the page", "PATCH", "/api/v1/models/chat/limits", json, [2]string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"limits, another site", "PATCH", "/api/v1/models/chat/limits", json, [2]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"limits, another port", "PATCH", "/api/v1/tenants/acme/limits", json, [2]string{"Sec-Fetch-Site", "same-site"}, 403},
		{"limits, another origin", "PATCH", "/api/v1/tenants/acme/limits", json, [2]string{"Origin", "http://localhost:3000"}, 403},
		{"limits, no origin at all", "PATCH", "/api/v1/models/chat/limits", json, [2]string{"Origin", "null"}, 403},
		{"limits, as a form would", "PATCH", "/api/v1/models/chat/limits", "text/plain", [2]string{}, 415},
		{"limits, no type", "PATCH", "/api/v1/models/chat/limits", "", [2]string{}, 415},
		{"limits, the wrong method", "POST", "/api/v1/models/chat/limits", json, [2]string{}, 405},
		{"tenants", "PATCH", "/api/v1/tenants", json, [2]string{}, 405},
		{"models", "POST", "/api/v1/models", json, [2]string{}, 405},
		{"delete", "DELETE", "/api/v1/models/chat/limits", json, [2]string{}, 405},
		{"head", "HEAD", "/api/v1/models", "", [2]string{}, 200},
		{"preflight", "OPTIONS", "/api/v1/reload", "", [2]string{"Origin", "http://evil.example"}, 415},
	} {
		cfg := newConfig()
		calls := 0
		cfg.Reload = func(context.Context, bool) error { calls++; return nil }
		cfg.PatchLimits = func(context.Context, string, map[string]*int64) *openai.Error { calls++; return nil }
		w := httptest.NewRecorder()
		body := `{"weight":1}`
		if c.path == "/api/v1/reload" {
			body = "{}"
		}
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(body))
		r.Host = "localhost:9090"
		r.Header.Set("Content-Type", c.media)
		if c.header[0] != "" {
			r.Header.Set(c.header[0], c.header[1])
		}
		New(cfg).ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d", c.name, w.Code, c.status)
		}
		if changed := calls > 0; changed != (c.method != "HEAD" && c.status == 200) {
			t.Errorf("%s: the request changed the state: %v, want %v", c.name, changed, !changed)
		}
		if c.status == 405 && w.Header().Get("Allow") == "" {
			t.Errorf("%s: the answer has no Allow header", c.name)
		}
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: the answer lets other origins read it", c.name)
		}
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	t.Parallel()
	h := New(newConfig())
	for _, path := range []string{"/", "/app.js", "/style.css", "/api/v1/models", "/readyz", "/metrics", "/nothing"} {
		header := get(h, path).Header()
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"X-Frame-Options": "DENY", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if !strings.HasPrefix(header.Get(name), want) {
				t.Errorf("%s: %s is %q, want %q", path, name, header.Get(name), want)
			}
		}
		if strings.Contains(header.Get("Content-Security-Policy"), "unsafe") {
			t.Errorf("%s: the Content-Security-Policy contains unsafe", path)
		}
	}
}

// TestPageIsSelfContained: the page refers only to its own files, and all of them are served. No
// file turns text into markup or uses what the Content-Security-Policy forbids.
func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()
	h := New(newConfig())
	reference := regexp.MustCompile(`(?:src|href)="([^"#][^"]*)"|from '([^']+)'`)
	forbidden := regexp.MustCompile(`https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|<style|style="|\son\w+="`)
	files, err := fs.Glob(page, "page/*.*")
	viewFiles, err2 := fs.Glob(page, "page/views/*")
	if err != nil || err2 != nil || len(files) < 5 || len(viewFiles) < 5 {
		t.Fatalf("%v: %v", err, files)
	}
	for _, file := range append(files, viewFiles...) {
		body, err := page.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reference.FindAllStringSubmatch(string(body), -1) {
			ref := m[1]
			if m[2] != "" {
				ref = strings.TrimPrefix(path.Join(path.Dir(file), m[2]), "page")
			}
			if w := get(h, ref); ref[0] != '/' || w.Code != http.StatusOK && w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s refers to %s: status %d", file, ref, w.Code)
			}
		}
		text := strings.NewReplacer(`http://www.w3.org/2000/svg`, "").Replace(string(body))
		if found := forbidden.FindString(text); found != "" {
			t.Errorf("%s has %q", file, found)
		}
	}
	for path, want := range map[string]string{"/": "text/html", "/app.js": "text/javascript", "/style.css": "text/css", "/favicon.svg": "image/svg+xml"} {
		if got := get(h, path).Header().Get("Content-Type"); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}
