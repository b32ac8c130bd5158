package admin

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// page holds the files of the operator's page. page/lib holds those of others; scripts/page.sh
// copies them from the packages of tests/clients/package-lock.json.
//
//go:embed page
var page embed.FS

// mediaTypes holds the media types of the page's files by the end of their names.
var mediaTypes = map[string]string{
	".html":    "text/html; charset=utf-8",
	".js":      "text/javascript; charset=utf-8",
	".css":     "text/css; charset=utf-8",
	".svg":     "image/svg+xml",
	".LICENSE": "text/plain; charset=utf-8",
}

// viewPaths are the first parts of the paths of the page's views. /models/chat and /models are the
// same file as /. The page reads the path itself.
var viewPaths = map[string]bool{
	"configuration": true, "models": true, "nodes": true, "playground": true, "replicas": true, "requests": true,
	"keys": true, "routing": true, "tenants": true, "usage": true,
}

// isView reports whether a path is that of a view of the page.
func isView(path string) bool {
	kind, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return viewPaths[kind]
}

// pageFiles returns the handlers of the page's files by URL path.
func pageFiles() map[string]http.Handler {
	files := map[string]http.Handler{}
	err := fs.WalkDir(page, "page", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := page.ReadFile(name)
		files[strings.TrimPrefix(name, "page")] = pageFile(body, mediaTypes[path.Ext(name)])
		return err
	})
	if err != nil { // an embedded file can always be read
		panic(err)
	}
	files["/"] = files["/index.html"]
	delete(files, "/index.html")
	return files
}

func pageFile(body []byte, mediaType string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		// A failed write means that the client has disconnected.
		_, _ = w.Write(body)
	})
}
