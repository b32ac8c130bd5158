package loglines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/sluice-gateway/sluice/internal/redact"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// lockedBuffer is a bytes.Buffer for two goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// await waits until the text has come.
func (l *lockedBuffer) await(t *testing.T, text string) {
	t.Helper()
	testutil.EventuallyNil(t, "the text", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if now := l.b.String(); now != text {
			return fmt.Errorf("read %q, want %q", now, text)
		}
		return nil
	})
}

func TestO8_LastLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	text := "loading model\n\x1b[31mERROR one\x1b[0m\n 10%\r 90%\r done\nkey is hunter-two-is-secret\n\nerror two\nhalf"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		q    Query
		want string
	}{
		{Query{Tail: 100}, "loading model\n[31mERROR one[0m\n done\nkey is …\nerror two\nhalf\n"},
		{Query{Tail: 2}, "error two\nhalf\n"},
		{Query{Tail: 1, Search: "error"}, "error two\n"},
		{Query{Tail: 9, Search: "ERROR"}, "[31mERROR one[0m\nerror two\n"},
		{Query{Tail: 9, Search: "hunter"}, ""},
		{Query{}, ""},
	} {
		var out strings.Builder
		if err := CopyFile(t.Context(), &out, path, test.q, redact.New("hunter-two-is-secret")); err != nil || out.String() != test.want {
			t.Errorf("%+v: %v, %q, want %q", test.q, err, out.String(), test.want)
		}
	}
	long := strings.Repeat("é", maxLine)
	for line, want := range map[string]string{"windows\r\n": "windows", "\ta\x07b \n": "\tab", " \r\n": "", long[:maxLine]: long[:maxLine],
		long: long[:maxLine] + "…", "a" + long: "a" + long[:maxLine-2] + "…"} {
		if got, ok := (Query{}).Filter(line, nil); got != want || ok != (want != "") {
			t.Errorf("the line %.20q: %.20q of %d bytes, %v", line, got, len(got), ok)
		}
	}
	var out strings.Builder
	if err := CopyFile(t.Context(), &out, path+"-none", Query{Tail: 1}, nil); err != nil || out.Len() > 0 {
		t.Error("a file that does not exist:", err, out.String())
	}
	if err := (Query{Search: "two"}).Copy(&out, strings.NewReader("one\ntwo\nhalf two"), nil); err != nil || out.String() != "two\nhalf two\n" {
		t.Errorf("a stream: %v, %q", err, out.String())
	}
}

// writerFunc is an io.Writer of a function.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A client that asks for a log learns that it cannot be read. A copy ends when nobody takes its
// lines.
func TestO8_FaultsOfACopy(t *testing.T) {
	t.Parallel()
	gone := writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe })
	path := filepath.Join(t.TempDir(), "log")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write("old\n")
	for _, follow := range []bool{false, true} {
		q := Query{Tail: 1, Follow: follow}
		if err := CopyFile(t.Context(), io.Discard, t.TempDir(), q, nil); !errors.Is(err, syscall.EISDIR) {
			t.Errorf("a folder, followed %v: %v", follow, err)
		}
		if err := CopyFile(t.Context(), gone, path, q, nil); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the last line, followed %v: %v", follow, err)
		}
	}
	lines := 0
	leaves := writerFunc(func(p []byte) (int, error) {
		if lines++; lines > 1 {
			return 0, io.ErrClosedPipe
		}
		write("old\nnew\n")
		return len(p), nil
	})
	if err := CopyFile(t.Context(), leaves, path, Query{Tail: 1, Follow: true}, nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a line that comes: %v", err)
	}
	if err := (Query{}).Copy(gone, strings.NewReader("one\n"), nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a stream: %v", err)
	}
	if err := (Query{}).Copy(io.Discard, iotest.ErrReader(io.ErrNoProgress), nil); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a stream that fails: %v", err)
	}
}

// A followed file shows what comes, whole lines only, also after it was rotated.
func TestO8_FollowAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	write := func(flag int, text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	write(0, "older\nlast\nha")
	ctx, cancel := context.WithCancel(t.Context())
	var out lockedBuffer
	ended := make(chan error, 1)
	go func() { ended <- CopyFile(ctx, &out, path, Query{Tail: 1, Follow: true}, nil) }()
	out.await(t, "last\n")
	write(os.O_APPEND, "lf\nnew\n")
	out.await(t, "last\nhalf\nnew\n")
	write(os.O_APPEND, "newer\n") // each line comes once
	out.await(t, "last\nhalf\nnew\nnewer\n")
	write(os.O_TRUNC, "again\n")
	out.await(t, "last\nhalf\nnew\nnewer\nagain\n")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
