package weights

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// maxListing is the largest answer of the hub about a repository that is read, in bytes.
	maxListing = 64 << 20
	// headerTimeout is how long the hub may take to begin its answer.
	headerTimeout = time.Minute
	// maxRetryAfter limits how long a hub that limits rates may make a fetch wait.
	maxRetryAfter = 5 * time.Minute
)

var (
	// commitForm is the form of a commit.
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)
	// hashForm is the form of the SHA-256 of a large file.
	hashForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	// repositoryForm is the form of an id. It contains no step that leaves the cache.
	repositoryForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$`)
)

// ValidRepository reports whether the text may be the id of a repository.
func ValidRepository(id string) bool {
	return len(id) <= 200 && repositoryForm.MatchString(id) && !strings.Contains(id, "..") && !strings.Contains(id, "--")
}

// client calls one hub with the token of one source.
type client struct {
	endpoint, token string
	http            http.Client
	// stall is how long an answer may stand still.
	stall time.Duration
	// report is called before the hub is asked what to fetch, and before it is asked again.
	report func(Progress)
	// close closes the connections.
	close func()
}

// newTransport returns the default of Fetcher.Transport. A connection of HTTP/2 that is dead is
// found within stall by a ping. Without it, each retry would be sent on the same connection.
func newTransport(stall time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = headerTimeout
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: stall / 4, PingTimeout: stall / 4}
	return t
}

// client returns the client for a source. Space around the token is left out, because files and
// Secrets often end with a new line.
func (f *Fetcher) client(s Source) *client {
	c := &client{endpoint: s.endpoint(), token: strings.TrimSpace(s.Token), stall: f.stall(), report: func(Progress) {}}
	c.close = func() {}
	transport := f.Transport
	if transport == nil {
		own := newTransport(f.stall())
		transport, c.close = own, own.CloseIdleConnections
	}
	c.http = http.Client{Transport: &authorised{c.endpoint, c.token, transport}, CheckRedirect: checkRedirect}
	return c
}

// authorised adds the token to requests to the hub itself. Requests to any other server that a
// redirect leads to, such as one that stores files, get no token. net/http would also send it to
// subdomains.
type authorised struct {
	endpoint, token string
	next            http.RoundTripper
}

func (a *authorised) RoundTrip(r *http.Request) (*http.Response, error) {
	hub, err := url.Parse(a.endpoint)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	r.Header.Del("Referer") // a redirect sets it; signed addresses are nobody else's business
	switch atHub := r.URL.Scheme == hub.Scheme && r.URL.Host == hub.Host; {
	case atHub && a.token != "":
		r.Header.Set("Authorization", "Bearer "+a.token)
	case atHub && hub.User != nil: // a mirror with a name and a password in its address
		password, _ := hub.User.Password()
		r.SetBasicAuth(hub.User.Username(), password)
	}
	return a.next.RoundTrip(r)
}

// checkRedirect follows up to ten redirects, and none from TLS to plain HTTP.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("too many redirects")
	}
	if via[len(via)-1].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("the hub redirects to %s without TLS", r.URL.Host)
	}
	return nil
}

// get sends a request and returns the answer if its status is 2xx, or a redirect that the client
// does not follow. Otherwise it returns a *statusError.
func (c *client) get(ctx context.Context, method, address string, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "sluice")
	r.Header.Set("Accept-Encoding", "identity") // sizes and hashes are those of the file
	maps.Copy(r.Header, header)
	response, err := c.http.Do(r)
	if err != nil {
		return nil, withoutQuery(err)
	}
	if response.StatusCode < 400 {
		return response, nil
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 4<<10)
	return nil, &statusError{
		status: response.StatusCode, code: response.Header.Get("X-Error-Code"), hub: withoutPassword(c.endpoint), token: c.token != "",
		host: response.Request.URL.Host, retryAfter: retryAfter(response.Header, time.Now()),
	}
}

// withoutPassword returns the address of a hub as errors show it.
func withoutPassword(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return endpoint
	}
	u.User = nil
	return u.String()
}

// withoutQuery removes the query from the address in an error, because signatures are in it.
func withoutQuery(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		address, _, _ := strings.Cut(failed.URL, "?")
		return &url.Error{Op: failed.Op, URL: address, Err: failed.Err}
	}
	return err
}

// rateLimitReset matches the seconds until a limit is reset, in the header RateLimit that
// huggingface.co answers, such as "api";r=0;t=55 (https://huggingface.co/docs/hub/rate-limits).
var rateLimitReset = regexp.MustCompile(`;\s*t=(\d{1,9})`)

// retryAfter returns how long to wait, at most maxRetryAfter: by the header Retry-After, which is a
// number of seconds or a date, else by RateLimit. It returns 0 if there is neither.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	if reset := rateLimitReset.FindStringSubmatch(h.Get("RateLimit")); text == "" && reset != nil {
		text = reset[1]
	}
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, int(maxRetryAfter.Seconds()))) * time.Second
}

// statusError is an answer of the hub with another status than 2xx.
type statusError struct {
	status     int
	code       string // X-Error-Code of the hub; empty: none
	hub, host  string // the hub's URL; the server that answered
	token      bool   // a token was sent
	retryAfter time.Duration
}

// temporary reports whether the same request may succeed later.
func (e *statusError) temporary() bool {
	return e.status == http.StatusTooManyRequests || e.status == http.StatusRequestTimeout || e.status >= 500
}

// refusedElsewhere reports whether another server than the hub refuses the request. It was sent no
// token.
func (e *statusError) refusedElsewhere() bool {
	hub, err := url.Parse(e.hub)
	return err == nil && e.host != hub.Host && (e.status == http.StatusUnauthorized || e.status == http.StatusForbidden)
}

func (e *statusError) Error() string {
	about := fmt.Sprintf("%s answers %d", e.host, e.status)
	if e.code != "" {
		about += " (" + e.code + ")"
	}
	switch {
	case e.code == "GatedRepo" && e.token:
		return about + ": the account of the token has no access yet; accept the conditions on the repository's page at " + e.hub
	case e.code == "GatedRepo":
		return about + ": the repository is gated; accept its conditions at " + e.hub + " and give a token by token_env or HF_TOKEN"
	case e.status == http.StatusTooManyRequests:
		about += ": too many requests"
		if e.retryAfter > 0 {
			about += fmt.Sprintf("; it wants a pause of %v", e.retryAfter.Round(time.Second))
		}
		if !e.token {
			about += "; with a token (token_env or HF_TOKEN) it may allow more"
		}
		return about
	case e.code == "RevisionNotFound":
		return about + ": the repository has no such revision"
	case e.code == "EntryNotFound":
		return about + ": the repository has no such file"
	case e.refusedElsewhere():
		return about + ": the hub redirects there, and that server or a proxy before it refuses the request"
	case e.status == http.StatusUnauthorized && !e.token, e.code == "RepoNotFound" && !e.token:
		return about + ": there is no such repository, or it is private and needs a token (token_env or HF_TOKEN)"
	case e.status == http.StatusForbidden && !e.token:
		return about + ": the hub, or a proxy before it, refuses the request; a token (token_env or HF_TOKEN) may help"
	case e.status == http.StatusUnauthorized, e.status == http.StatusForbidden:
		return about + ": the token does not give access"
	case e.status == http.StatusNotFound:
		return about + ": there is no such repository or file"
	}
	return about
}

// List asks the hub what the repository holds at the revision. Its error says what to do.
func (f *Fetcher) List(ctx context.Context, s Source) (*Listing, error) {
	if !ValidRepository(s.Repository) {
		return nil, fmt.Errorf("%q is no id of a repository: want ORG/NAME", s.Repository)
	}
	hub := f.client(s)
	defer hub.close()
	return f.list(ctx, hub, s)
}

func (f *Fetcher) list(ctx context.Context, hub *client, s Source) (*Listing, error) {
	var told struct {
		SHA  string `json:"sha"`
		Task string `json:"pipeline_tag"`
		GGUF struct {
			Architecture  string `json:"architecture"`
			ContextLength int    `json:"context_length"`
		} `json:"gguf"`
		Siblings []sibling `json:"siblings"`
	}
	address := hub.endpoint + "/api/models/" + s.Repository + "/revision/" + url.PathEscape(s.revision()) + "?blobs=true"
	if err := f.retry(ctx, hub, func() error { return hub.getJSON(ctx, address, &told) }); err != nil {
		return nil, fmt.Errorf("repository %s at revision %s: %w", s.Repository, s.revision(), err)
	}
	if !commitForm.MatchString(told.SHA) {
		return nil, fmt.Errorf("repository %s: the hub names no commit for revision %s", s.Repository, s.revision())
	}
	l := &Listing{Repository: s.Repository, Commit: told.SHA, Task: told.Task, Architecture: told.GGUF.Architecture, ContextLength: told.GGUF.ContextLength}
	for _, entry := range told.Siblings {
		if file, ok := entry.file(); ok {
			l.Files = append(l.Files, file)
		}
	}
	return l, nil
}

// sibling is a file as the hub lists it.
type sibling struct {
	Name string `json:"rfilename"`
	Size int64  `json:"size"`
	Blob string `json:"blobId"`
	LFS  *struct {
		SHA256 string `json:"sha256"`
		Size   int64  `json:"size"`
	} `json:"lfs"`
}

// file returns the file; false for a path that leaves the repository.
func (s sibling) file() (File, bool) {
	f := File{Path: s.Name, Size: s.Size, Hash: s.Blob}
	if s.LFS != nil {
		f.Hash = s.LFS.SHA256
		if s.LFS.Size > 0 {
			f.Size = s.LFS.Size
		}
	}
	return f, ValidPath(s.Name)
}

// getJSON reads the JSON that the hub answers.
func (c *client) getJSON(ctx context.Context, address string, into any) error {
	ctx, stalled, stop := untilStalled(ctx, c.stall)
	defer stop()
	response, err := c.get(ctx, http.MethodGet, address, nil)
	if err == nil {
		defer response.Body.Close()
		body := resetting{response.Body, stalled, c.stall}
		if err = json.NewDecoder(io.LimitReader(body, maxListing)).Decode(into); err != nil {
			err = fmt.Errorf("the answer of %s is not the JSON of a hub: %w", response.Request.URL.Host, err)
		}
	}
	if err != nil && context.Cause(ctx) != nil {
		return context.Cause(ctx)
	}
	return err
}

// resetting resets a timer whenever something has come.
type resetting struct {
	io.Reader
	timer *time.Timer
	after time.Duration
}

func (r resetting) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if n > 0 {
		r.timer.Reset(r.after)
	}
	return n, err
}

func (c *client) address(repository, commit, path string) string {
	steps := strings.Split(path, "/")
	for i, step := range steps {
		steps[i] = url.PathEscape(step)
	}
	return c.endpoint + "/" + repository + "/resolve/" + commit + "/" + strings.Join(steps, "/")
}

// describe completes the files of the selection whose size or hash the listing of the hub lacks, as
// it does with some mirrors. It changes the listing too.
func (f *Fetcher) describe(ctx context.Context, hub *client, l *Listing, selection Selection) error {
	for i := range selection.Files {
		file := &selection.Files[i]
		if file.Hash == "" {
			err := f.retry(ctx, hub, func() error { return hub.describe(ctx, hub.address(l.Repository, l.Commit, file.Path), file) })
			if err != nil {
				return fmt.Errorf("%s of repository %s: %w", file.Path, l.Repository, err)
			}
			l.set(*file)
		}
		if !commitForm.MatchString(file.Hash) && !hashForm.MatchString(file.Hash) || file.Size < 0 {
			return fmt.Errorf("%s of repository %s: the hub tells no checksum and size", file.Path, l.Repository)
		}
	}
	return nil
}

// describe sets the size and hash of a file by the headers that the hub answers. A large file is
// stored elsewhere, so the redirect to it is not followed.
func (c *client) describe(ctx context.Context, address string, f *File) error {
	still := *c
	still.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := still.get(ctx, http.MethodHead, address, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	f.Size = response.ContentLength
	if linked := response.Header.Get("X-Linked-Size"); linked != "" {
		if f.Size, err = strconv.ParseInt(linked, 10, 64); err != nil {
			f.Size = -1
		}
	}
	tag := cmp.Or(response.Header.Get("X-Linked-Etag"), response.Header.Get("Etag"))
	f.Hash = strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)
	return nil
}
