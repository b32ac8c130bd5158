package admin

import (
	"embed"
	"net/http"
)

//go:embed page
var page embed.FS

// pageFiles returns the handlers of the page's files by URL path.
func pageFiles() map[string]http.Handler {
	files := map[string]http.Handler{}
	for path, f := range map[string]struct{ name, mediaType string }{
		"/":            {"index.html", "text/html; charset=utf-8"},
		"/app.js":      {"app.js", "text/javascript; charset=utf-8"},
		"/view.js":     {"view.js", "text/javascript; charset=utf-8"},
		"/login.js":    {"login.js", "text/javascript; charset=utf-8"},
		"/limits.js":   {"limits.js", "text/javascript; charset=utf-8"},
		"/routing.js":  {"routing.js", "text/javascript; charset=utf-8"},
		"/tables.js":   {"tables.js", "text/javascript; charset=utf-8"},
		"/style.css":   {"style.css", "text/css; charset=utf-8"},
		"/favicon.svg": {"favicon.svg", "image/svg+xml"},
	} {
		body, err := page.ReadFile("page/" + f.name)
		if err != nil { // a file that is not embedded is a bug
			panic(err)
		}
		files[path] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", f.mediaType)
			// A failed write means that the client has disconnected.
			_, _ = w.Write(body)
		})
	}
	return files
}
