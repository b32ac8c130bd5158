// Package hubtest is a stand-in of a hub of models: the part of huggingface.co's HTTP API by which
// repositories are listed and fetched. Tests of Sluice use it instead of the network.
//
// As the hub does, it serves small files itself and redirects to another server for large ones. It
// can break transfers off, hold them, and send wrong content.
package hubtest

import (
	"crypto/sha1" //nolint:gosec // git names content by it
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// largeBytes is the size from which a file is stored on the other server.
const largeBytes = 1 << 10

// Hub serves repositories. Make one with New. Its fields may be changed only by its methods.
type Hub struct {
	// URL is the endpoint of the hub.
	URL string

	storage *httptest.Server

	mu    sync.Mutex
	repos map[string]*Repository
	// requests lists the GET requests for content as "path offset".
	requests []string
	// leaked are the tokens that the storage server was sent.
	leaked []string
	faults map[string]*Faults
	// bare leaves sizes and hashes out of listings, as some mirrors do.
	bare bool
	down bool
}

// Repository is what the hub has under a name.
type Repository struct {
	// Commit is the commit of main: 40 hexadecimal digits. Empty: New content gets one.
	Commit string
	// Task is the pipeline_tag.
	Task string
	// Architecture and ContextLength are those of the GGUF files.
	Architecture  string
	ContextLength int
	// Token is what a request needs to see the repository. Empty: none.
	Token string
	// Gated repositories are listed, but their content needs the token.
	Gated bool
	// Files is the content by path.
	Files map[string][]byte
}

// Faults are what goes wrong with one file.
type Faults struct {
	// BreakAfter lists after how many bytes the next transfers break off.
	BreakAfter []int
	// Corrupt is how many transfers have a wrong byte.
	Corrupt int
	// Statuses are the answers to the next requests, instead of content.
	Statuses []int
	// NoRange makes the server send the whole file always.
	NoRange bool
	// Hold, if it is not nil, stops each transfer in the middle until the channel is closed.
	Hold chan struct{}
}

// New starts a hub that ends with the test.
func New(t testing.TB) *Hub {
	h := &Hub{repos: map[string]*Repository{}, faults: map[string]*Faults{}}
	front := httptest.NewServer(http.HandlerFunc(h.serve))
	h.storage = httptest.NewServer(http.HandlerFunc(h.serveStorage))
	h.URL = front.URL
	t.Cleanup(front.Close)
	t.Cleanup(h.storage.Close)
	return h
}

// Put creates or replaces a repository.
func (h *Hub) Put(name string, r Repository) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Commit == "" {
		sum := sha1.New() //nolint:gosec // as above
		for _, path := range r.paths() {
			fmt.Fprintf(sum, "%s %d ", path, len(r.Files[path]))
			sum.Write(r.Files[path])
		}
		r.Commit = hex.EncodeToString(sum.Sum(nil))
	}
	h.repos[name] = &r
}

// Fail sets what goes wrong with the file of that path, in all repositories.
func (h *Hub) Fail(path string, f Faults) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults[path] = &f
}

// Bare makes listings have no sizes and hashes.
func (h *Hub) Bare() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bare = true
}

// Down makes the hub answer every request with 503, until it is called with false.
func (h *Hub) Down(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = down
}

// Requests returns the requests for content so far, each as "path offset".
func (h *Hub) Requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// Leaked returns the tokens that the storage server was sent. There must be none.
func (h *Hub) Leaked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.leaked)
}

func (r *Repository) paths() []string {
	return slices.Sorted(maps.Keys(r.Files))
}

// serve is the hub itself.
func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	down := h.down
	h.mu.Unlock()
	if down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/api/models/"); ok {
		name, revision, _ := strings.Cut(rest, "/revision/")
		h.serveListing(w, r, name, revision)
		return
	}
	name, rest, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/resolve/")
	revision, path, _ := strings.Cut(rest, "/")
	if !ok {
		refuse(w, http.StatusNotFound, "")
		return
	}
	h.serveFile(w, r, name, revision, path)
}

// find returns the repository at the revision, or nil after it has refused the request.
func (h *Hub) find(w http.ResponseWriter, r *http.Request, name, revision string) *Repository {
	h.mu.Lock()
	repo := h.repos[name]
	h.mu.Unlock()
	switch {
	case repo == nil, repo.Token != "" && !repo.Gated && r.Header.Get("Authorization") != "Bearer "+repo.Token:
		refuse(w, http.StatusUnauthorized, "RepoNotFound")
	case revision != "main" && revision != repo.Commit:
		refuse(w, http.StatusNotFound, "RevisionNotFound")
	default:
		return repo
	}
	return nil
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.WriteHeader(status)
}

func (h *Hub) serveListing(w http.ResponseWriter, r *http.Request, name, revision string) {
	repo := h.find(w, r, name, revision)
	if repo == nil {
		return
	}
	h.mu.Lock()
	bare := h.bare || r.URL.Query().Get("blobs") == ""
	h.mu.Unlock()
	var siblings []map[string]any
	for _, path := range repo.paths() {
		entry := map[string]any{"rfilename": path}
		if content := repo.Files[path]; !bare {
			entry["size"], entry["blobId"] = len(content), gitHash(content)
			if len(content) >= largeBytes {
				entry["lfs"] = map[string]any{"sha256": contentHash(content), "size": len(content), "pointerSize": 135}
			}
		}
		siblings = append(siblings, entry)
	}
	answer := map[string]any{"id": name, "sha": repo.Commit, "siblings": siblings, "gated": repo.Gated}
	if repo.Task != "" {
		answer["pipeline_tag"] = repo.Task
	}
	if repo.Architecture != "" {
		answer["gguf"] = map[string]any{"architecture": repo.Architecture, "context_length": repo.ContextLength}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// serveFile serves a small file, and redirects for a large one.
func (h *Hub) serveFile(w http.ResponseWriter, r *http.Request, name, revision, path string) {
	repo := h.find(w, r, name, revision)
	if repo == nil {
		return
	}
	content, ok := repo.Files[path]
	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "EntryNotFound")
		return
	case repo.Gated && r.Header.Get("Authorization") == "":
		refuse(w, http.StatusUnauthorized, "GatedRepo")
		return
	case repo.Gated && r.Header.Get("Authorization") != "Bearer "+repo.Token:
		refuse(w, http.StatusForbidden, "GatedRepo")
		return
	}
	w.Header().Set("X-Repo-Commit", repo.Commit)
	if len(content) < largeBytes {
		w.Header().Set("Etag", `"`+gitHash(content)+`"`)
		h.send(w, r, path, content)
		return
	}
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(content)))
	w.Header().Set("X-Linked-Etag", `"`+contentHash(content)+`"`)
	w.Header().Set("Location", h.storage.URL+"/"+name+"/"+path+"?Signature=secret")
	w.WriteHeader(http.StatusFound)
}

// serveStorage is the other server, which the signature in the address admits to.
func (h *Hub) serveStorage(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	if token := r.Header.Get("Authorization"); token != "" {
		h.leaked = append(h.leaked, token)
	}
	var content []byte
	var path string
	for name, repo := range h.repos {
		if p, ok := strings.CutPrefix(r.URL.Path, "/"+name+"/"); ok && repo.Files[p] != nil {
			content, path = repo.Files[p], p
		}
	}
	h.mu.Unlock()
	if content == nil || r.URL.Query().Get("Signature") != "secret" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	h.send(w, r, path, content)
}

// send sends the content from the offset that the request names, with the faults of the file.
func (h *Hub) send(w http.ResponseWriter, r *http.Request, path string, content []byte) {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		return
	}
	f := h.nextFaults(path)
	offset := 0
	if text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && !f.NoRange {
		offset, _ = strconv.Atoi(strings.TrimSuffix(text, "-"))
	}
	h.mu.Lock()
	h.requests = append(h.requests, fmt.Sprintf("%s %d", path, offset))
	h.mu.Unlock()
	if len(f.Statuses) > 0 {
		w.WriteHeader(f.Statuses[0])
		return
	}
	if offset > len(content) {
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	if f.Corrupt > 0 && offset < len(content) {
		content = slices.Clone(content)
		content[len(content)-1]++
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)-offset))
	if offset > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, len(content)-1, len(content)))
		w.WriteHeader(http.StatusPartialContent)
	}
	sendBody(w, r, content[offset:], f)
}

// nextFaults returns the faults of one transfer, each list with its first element, and takes them
// off.
func (h *Hub) nextFaults(path string) Faults {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.faults[path]
	if all == nil {
		return Faults{}
	}
	now := *all
	if len(all.Statuses) > 0 {
		all.Statuses = all.Statuses[1:]
		return now
	}
	if len(all.BreakAfter) > 0 {
		all.BreakAfter = all.BreakAfter[1:]
	}
	if all.Corrupt > 0 {
		all.Corrupt--
	}
	return now
}

// sendBody sends the content, and breaks the connection off where the faults say.
func sendBody(w http.ResponseWriter, r *http.Request, content []byte, f Faults) {
	if f.Hold != nil {
		half := len(content) / 2
		_, _ = w.Write(content[:half])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-f.Hold:
		case <-r.Context().Done():
			return
		}
		content = content[half:]
	}
	if len(f.BreakAfter) > 0 && f.BreakAfter[0] < len(content) {
		_, _ = w.Write(content[:f.BreakAfter[0]])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(content)
}

func contentHash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func gitHash(content []byte) string {
	sum := sha1.New() //nolint:gosec // as above
	fmt.Fprintf(sum, "blob %d\x00", len(content))
	sum.Write(content)
	return hex.EncodeToString(sum.Sum(nil))
}
