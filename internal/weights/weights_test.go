package weights_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/internal/weights"
	"github.com/sluice-gateway/sluice/internal/weights/hubtest"
)

const (
	repository = "org/tiny-GGUF"
	ggufFile   = "tiny-Q4_K_M.gguf"
)

// content returns so many bytes that no two calls with other seeds have in common.
func content(seed uint64, size int) []byte {
	source := rand.NewChaCha8([32]byte{byte(seed)})
	b := make([]byte, size)
	_, _ = source.Read(b)
	return b
}

// tiny is a repository with one GGUF file and a small one.
func tiny() hubtest.Repository {
	return hubtest.Repository{Task: "text-generation", Files: map[string][]byte{
		ggufFile: content(1, 1<<20), "README.md": []byte("# tiny"),
	}}
}

// fetcher has no long pauses.
func fetcher() *weights.Fetcher {
	return &weights.Fetcher{Every: time.Millisecond, Pause: time.Millisecond}
}

// source names the GGUF file at the hub, in a cache of the test's own.
func source(t *testing.T, hub *hubtest.Hub) weights.Source {
	return weights.Source{Repository: repository, Endpoint: hub.URL, CacheDir: t.TempDir(), GGUF: true}
}

// check fails the test if the path does not hold the content.
func check(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, and not the %d that the hub has", path, len(got), len(want))
	}
}

func TestU19_FetchedFileIsWhole(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	hub.Put(repository, repo)
	s := source(t, hub)
	var last weights.Progress
	path, err := fetcher().Fetch(t.Context(), s, func(p weights.Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
	if last.Total != 1<<20 {
		t.Errorf("the last report is %+v", last)
	}
	if want := []string{ggufFile + " 0"}; !slices.Equal(hub.Requests(), want) {
		t.Errorf("requests %q, want %q: only the chosen file", hub.Requests(), want)
	}
	// The layout is the one of the hub's own cache.
	sum := sha256.Sum256(repo.Files[ggufFile])
	check(t, filepath.Join(s.CacheDir, "models--org--tiny-GGUF", "blobs", hex.EncodeToString(sum[:])), repo.Files[ggufFile])
	target, err := os.Readlink(path)
	if want := "../../blobs/" + hex.EncodeToString(sum[:]); err != nil || target != want {
		t.Errorf("the snapshot links to %q, %v; want %q", target, err, want)
	}
	// What is there is used without the hub.
	hub.Down(true)
	again, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil || again != path {
		t.Errorf("a second fetch: %q, %v", again, err)
	}
}

func TestU19_DirectoryHasWhatEnginesLoad(t *testing.T) {
	hub := hubtest.New(t)
	repo := hubtest.Repository{Files: map[string][]byte{
		"config.json": []byte("{}"), "tokenizer.json": content(2, 3000), "model.safetensors": content(3, 5000), "empty.txt": {},
		"pytorch_model.bin": content(4, 5000), "onnx/model.onnx": content(5, 5000), "README.md": []byte("#"), ".gitattributes": []byte("*"),
		"tokenizer/special.json": []byte("[]"),
	}}
	hub.Put("org/model", repo)
	dir, err := fetcher().Fetch(t.Context(), weights.Source{Repository: "org/model", Endpoint: hub.URL, CacheDir: t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors", "empty.txt", "tokenizer/special.json"} {
		check(t, filepath.Join(dir, name), repo.Files[name])
		names = append(names, name+" 0")
	}
	got := hub.Requests()
	slices.Sort(got)
	slices.Sort(names)
	// An empty file needs no request.
	names = slices.DeleteFunc(names, func(n string) bool { return n == "empty.txt 0" })
	if diff := cmp.Diff(names, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestU19_BrokenTransfersAreResumed(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	hub.Put(repository, repo)
	hub.Fail(ggufFile, hubtest.Faults{BreakAfter: []int{100_000, 0, 300_000}, Statuses: []int{503, 429}})
	path, err := fetcher().Fetch(t.Context(), source(t, hub), nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
	want := []string{ggufFile + " 0", ggufFile + " 0", ggufFile + " 0", ggufFile + " 100000", ggufFile + " 100000", ggufFile + " 400000"}
	if diff := cmp.Diff(want, hub.Requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestU19_ServersWithoutRangesBeginAgain(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	hub.Put(repository, repo)
	hub.Fail(ggufFile, hubtest.Faults{BreakAfter: []int{100_000}, NoRange: true})
	path, err := fetcher().Fetch(t.Context(), source(t, hub), nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
	if want := []string{ggufFile + " 0", ggufFile + " 0"}; !slices.Equal(hub.Requests(), want) {
		t.Errorf("requests %q, want %q", hub.Requests(), want)
	}
}

func TestU19_NextFetchGoesOnWhereTheLastEnded(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	hub.Put(repository, repo)
	s := source(t, hub)
	hold := make(chan struct{})
	hub.Fail(ggufFile, hubtest.Faults{Hold: hold})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := fetcher().Fetch(ctx, s, func(p weights.Progress) {
		if p.Done == 1<<19 {
			cancel()
		}
	})
	if err == nil {
		t.Fatal("a fetch that was cancelled in the middle succeeded")
	}
	hub.Fail(ggufFile, hubtest.Faults{})
	path, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
	if want := []string{ggufFile + " 0", fmt.Sprint(ggufFile, " ", 1<<19)}; !slices.Equal(hub.Requests(), want) {
		t.Errorf("requests %q, want %q", hub.Requests(), want)
	}
}

func TestU19_StalledTransfersAreResumed(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	hub.Put(repository, repo)
	hold := make(chan struct{})
	hub.Fail(ggufFile, hubtest.Faults{Hold: hold})
	f := fetcher()
	f.Stall = 50 * time.Millisecond
	go func() {
		testutil.Eventually(t, "the transfer was asked for again", func() bool { return len(hub.Requests()) > 1 })
		hub.Fail(ggufFile, hubtest.Faults{})
	}()
	path, err := f.Fetch(t.Context(), source(t, hub), nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
}

// TestU19_AListingThatStandsStillIsAskedForAgain: the hub, or a proxy before it, begins to answer
// and sends nothing more.
func TestU19_AListingThatStandsStillIsAskedForAgain(t *testing.T) {
	hub := hubtest.New(t)
	hub.Put(repository, tiny())
	var stalled atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if stalled.Add(1) > 2 {
			http.Redirect(w, r, hub.URL+r.URL.RequestURI(), http.StatusTemporaryRedirect)
			return
		}
		_, _ = w.Write([]byte(`{"sha":`))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer front.Close()
	f, s := fetcher(), source(t, hub)
	f.Stall, s.Endpoint = 150*time.Millisecond, front.URL
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	if l, err := f.List(ctx, s); err != nil || len(l.Files) != 2 {
		t.Errorf("%+v, %v", l, err)
	}
	stalled.Store(-10)
	if _, err := f.List(ctx, s); err == nil || !strings.Contains(err.Error(), "nothing has come for 150ms") {
		t.Errorf("a hub that stands still always: %v", err)
	}
}

func TestU19_WrongContentIsNeverUsed(t *testing.T) {
	for name, size := range map[string]int{"large.gguf": 1 << 16, "small.gguf": 100} {
		hub := hubtest.New(t)
		repo := hubtest.Repository{Files: map[string][]byte{name: content(6, size)}}
		hub.Put(repository, repo)
		s := source(t, hub)
		hub.Fail(name, hubtest.Faults{Corrupt: 2})
		if _, err := fetcher().Fetch(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s: two wrong transfers: %v", name, err)
		}
		for _, pattern := range []string{"blobs/*", "snapshots/*/*"} {
			if left, _ := filepath.Glob(filepath.Join(s.CacheDir, "models--org--tiny-GGUF", pattern)); len(left) > 0 {
				t.Errorf("%s: left behind: %q", name, left)
			}
		}
		hub.Fail(name, hubtest.Faults{Corrupt: 1})
		path, err := fetcher().Fetch(t.Context(), s, nil)
		if err != nil {
			t.Fatalf("%s: a wrong transfer and a good one: %v", name, err)
		}
		check(t, path, repo.Files[name])
	}
}

// TestU19_WrongRestOfAnEarlierFetchIsRemoved: what lies there is wrong, and the transfer of the
// rest is good.
func TestU19_WrongRestOfAnEarlierFetchIsRemoved(t *testing.T) {
	for what, size := range map[string]int{"shorter": 1000, "as long": 1 << 20, "longer": 1<<20 + 1} {
		hub := hubtest.New(t)
		repo := tiny()
		hub.Put(repository, repo)
		s := source(t, hub)
		sum := sha256.Sum256(repo.Files[ggufFile])
		blobs := filepath.Join(s.CacheDir, "models--org--tiny-GGUF", "blobs")
		if err := os.MkdirAll(blobs, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(blobs, hex.EncodeToString(sum[:])+".incomplete"), content(7, size), 0o644); err != nil {
			t.Fatal(err)
		}
		path, err := fetcher().Fetch(t.Context(), s, nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		check(t, path, repo.Files[ggufFile])
	}
}

// TestU19_WhatAnEarlierFetchLeftCountsWhileItIsChecked: the progress does not stand at 0 % while
// the hash of hundreds of gigabytes is computed.
func TestU19_WhatAnEarlierFetchLeftCountsWhileItIsChecked(t *testing.T) {
	hub := hubtest.New(t)
	whole := content(1, 64<<20)
	hub.Put(repository, hubtest.Repository{Files: map[string][]byte{ggufFile: whole}})
	s := source(t, hub)
	sum := sha256.Sum256(whole)
	blobs := filepath.Join(s.CacheDir, "models--org--tiny-GGUF", "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	left := len(whole) - 1
	if err := os.WriteFile(filepath.Join(blobs, hex.EncodeToString(sum[:])+".incomplete"), whole[:left], 0o644); err != nil {
		t.Fatal(err)
	}
	seen := 0
	path, err := fetcher().Fetch(t.Context(), s, func(p weights.Progress) {
		if p.Done > 0 && p.Done < int64(left) {
			seen++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, whole)
	if seen == 0 {
		t.Error("no progress was told before all of it was checked")
	}
}

func TestU19_OneFetchForMany(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	hub.Put(repository, repo)
	s := source(t, hub)
	hold := make(chan struct{})
	hub.Fail(ggufFile, hubtest.Faults{Hold: hold})
	var all sync.WaitGroup
	var mu sync.Mutex
	half := map[int]bool{} // who has seen half of the file
	working := 0           // how many of them do not wait for another
	for i := range 8 {
		all.Go(func() {
			path, err := fetcher().Fetch(t.Context(), s, func(p weights.Progress) {
				mu.Lock()
				defer mu.Unlock()
				if p.Done == 1<<19 && !half[i] {
					if !p.Waiting {
						working++
					}
					if half[i] = true; len(half) == 8 {
						close(hold)
					}
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			check(t, path, repo.Files[ggufFile])
		})
	}
	all.Wait()
	if working != 1 {
		t.Errorf("%d of the fetches work, and seven should wait", working)
	}
	if want := []string{ggufFile + " 0"}; !slices.Equal(hub.Requests(), want) {
		t.Errorf("requests %q, want %q", hub.Requests(), want)
	}
}

func TestU19_TokenGoesToTheHubAlone(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	repo.Token, repo.Gated = "hf_secret", true
	hub.Put(repository, repo)
	s := source(t, hub)
	for token, want := range map[string]string{"": "gated", "hf_other": "no access yet"} {
		s.Token = token
		_, err := fetcher().Fetch(t.Context(), s, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hf_") {
			t.Errorf("with token %q: %v, want an error that says %q", token, err, want)
		}
	}
	s.Token = "hf_secret\n" // as a Secret has it that was made from a file
	path, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
	if leaked := hub.Leaked(); len(leaked) > 0 {
		t.Errorf("the server that the hub redirects to was sent %q", leaked)
	}
}

func TestU19_ErrorsSayWhatToDo(t *testing.T) {
	hub := hubtest.New(t)
	hub.Put(repository, tiny())
	private := tiny()
	private.Token = "hf_secret"
	hub.Put("org/private", private)
	for _, tt := range []struct {
		change func(*weights.Source)
		want   string
	}{
		{func(s *weights.Source) { s.Repository = "org/none" }, "no such repository, or it is private and needs a token"},
		{func(s *weights.Source) { s.Repository = "org/private" }, "no such repository, or it is private and needs a token"},
		{func(s *weights.Source) { s.Repository = "../x" }, "is no id of a repository"},
		{func(s *weights.Source) { s.Revision = "v9" }, "has no such revision"},
		{func(s *weights.Source) { s.Revision = "../v9" }, "is no revision"},
		{func(s *weights.Source) { s.File = "tiny-Q8_0.gguf" }, `holds no file "tiny-Q8_0.gguf"; it holds tiny-Q4_K_M.gguf`},
	} {
		s := source(t, hub)
		tt.change(&s)
		if _, err := fetcher().Fetch(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want an error that says %q", err, tt.want)
		}
	}
}

func TestU19_FullDiskIsToldBeforeTheFetch(t *testing.T) {
	hub := hubtest.New(t)
	hub.Put(repository, tiny())
	s := source(t, hub)
	testutil.SmallDisk(t, s.CacheDir, "512k")
	_, err := fetcher().Fetch(t.Context(), s, nil)
	if err == nil || !strings.Contains(err.Error(), "no room: 1.0 MiB more are needed in "+s.CacheDir) ||
		!strings.HasSuffix(err.Error(), "on Kubernetes enlarge the volume of its cache") {
		t.Errorf("on a small disk: %v", err)
	}
	if len(hub.Requests()) > 0 {
		t.Errorf("requests %q although there is no room", hub.Requests())
	}
}

// TestTwoFetchesShareOneDisk: each of two models fits alone. The second is refused while the first
// is fetched, and the first comes whole. Two fetches of the same model need its room once.
func TestTwoFetchesShareOneDisk(t *testing.T) {
	hub := hubtest.New(t)
	hold := make(chan struct{})
	for i, name := range []string{"org/a", "org/b"} {
		hub.Put(name, hubtest.Repository{Task: "text-generation", Files: map[string][]byte{ggufFile: content(uint64(i+1), 1<<20)}})
	}
	hub.Fail(ggufFile, hubtest.Faults{Hold: hold})
	s := source(t, hub)
	testutil.SmallDisk(t, s.CacheDir, "1600k")
	get := func(name string, report func(weights.Progress)) error {
		asked := s
		asked.Repository = name
		ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
		defer cancel()
		_, err := fetcher().Fetch(ctx, asked, report)
		return err
	}
	half, ended := make(chan struct{}), make(chan error, 2)
	begun := sync.OnceFunc(func() { close(half) })
	go func() {
		ended <- get("org/a", func(p weights.Progress) {
			if p.Done >= 1<<19 {
				begun()
			}
		})
	}()
	<-half
	const want = "of which running fetches need 512.0 KiB"
	if err := get("org/b", nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the second model: %v, want %q", err, want)
	}
	waiting := make(chan struct{})
	seen := sync.OnceFunc(func() { close(waiting) })
	go func() {
		ended <- get("org/a", func(p weights.Progress) {
			if p.Total > 0 {
				seen()
			}
		})
	}()
	<-waiting
	close(hold)
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("the first model: %v", err)
		}
	}
	if err := get("org/b", nil); err == nil || !strings.Contains(err.Error(), "no room: 1.0 MiB more") {
		t.Errorf("the second model after the first: %v", err)
	}
}

// TestU19_DiskThatFillsUpKeepsWhatCame: another program takes the room while the fetch runs.
func TestU19_DiskThatFillsUpKeepsWhatCame(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	hub.Put(repository, repo)
	s := source(t, hub)
	testutil.SmallDisk(t, s.CacheDir, "2m")
	hold := make(chan struct{})
	hub.Fail(ggufFile, hubtest.Faults{Hold: hold})
	var free func()
	_, err := fetcher().Fetch(t.Context(), s, func(p weights.Progress) {
		if p.Done == 1<<19 && free == nil {
			free = testutil.FillDisk(t, s.CacheDir)
			close(hold)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "no room left in "+s.CacheDir) {
		t.Fatalf("on a disk that fills up: %v", err)
	}
	free()
	path, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
	if got := hub.Requests(); len(got) != 2 || strings.HasSuffix(got[1], " 0") {
		t.Errorf("requests %q, want the second to go on", got)
	}
}

// TestU19_MirrorsWithoutSizes: the sizes and hashes come from the headers of the files.
func TestU19_MirrorsWithoutSizes(t *testing.T) {
	hub := hubtest.New(t)
	repo := tiny()
	repo.Token = "hf_secret"
	hub.Put(repository, repo)
	hub.Bare()
	s := source(t, hub)
	s.Token = "hf_secret"
	path, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, path, repo.Files[ggufFile])
	hub.Down(true)
	if _, err := fetcher().Fetch(t.Context(), s, nil); err != nil {
		t.Errorf("once more without the hub: %v", err)
	}
}

// TestU19_RevisionsStay: a revision stays what it was when it was fetched, until something of it is
// missing.
func TestU19_RevisionsStay(t *testing.T) {
	hub := hubtest.New(t)
	first, second := tiny(), tiny()
	second.Files = map[string][]byte{ggufFile: content(9, 1<<16), "tiny-Q8_0.gguf": content(10, 1<<16)}
	hub.Put(repository, first)
	s := source(t, hub)
	path, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	hub.Put(repository, second)
	if again, err := fetcher().Fetch(t.Context(), s, nil); err != nil || again != path {
		t.Errorf("after main has moved: %q, %v; want %q", again, err, path)
	}
	s.File = "tiny-Q8_0.gguf"
	newer, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, newer, second.Files[s.File])
	check(t, path, first.Files[ggufFile])
}

// TestU19_AFetchLeavesOtherSelectionsComplete: a model keeps the files that it was given, although
// main has moved and another model has fetched a file of the new commit. The hub is not asked.
func TestU19_AFetchLeavesOtherSelectionsComplete(t *testing.T) {
	const other = "tiny-Q8_0.gguf"
	hub := hubtest.New(t)
	first, second := tiny(), tiny()
	second.Files = map[string][]byte{ggufFile: content(9, 1<<16), other: content(10, 1<<16)}
	hub.Put(repository, first)
	s := source(t, hub)
	s.File = ggufFile
	path, err := fetcher().Fetch(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	hub.Put(repository, second)
	o := s
	o.File = other
	newer, err := fetcher().Fetch(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	hub.Down(true)
	for source, want := range map[weights.Source]string{s: path, o: newer} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if again, err := fetcher().Fetch(ctx, source, nil); err != nil || again != want {
			t.Errorf("%s: %q, %v; want %q", source.File, again, err, want)
		}
	}
}
