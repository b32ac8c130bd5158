package http1

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// writing starts a server whose handler calls do, and sends a request. A value is sent on the
// channel when do has returned.
func writing(t *testing.T, do func(*ResponseWriter)) (*peer, <-chan bool) {
	t.Helper()
	done := make(chan bool, 2)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		do(w.(*ResponseWriter))
		done <- true
	}, nil)
	p := w.dial(t)
	p.send(get)
	return p, done
}

// TestResponseBytes compares the bytes that a handler's calls produce.
func TestResponseBytes(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, c := range map[string]struct {
		do   func(*ResponseWriter)
		want string
	}{
		"nothing":  {func(w *ResponseWriter) {}, ok + "content-length: 0\r\n\r\n"},
		"a status": {func(w *ResponseWriter) { w.WriteHeader(503) }, "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"},
		"an odd status, twice": {func(w *ResponseWriter) { w.WriteHeader(599); w.WriteHeader(200) },
			"HTTP/1.1 599 status code 599\r\ncontent-length: 0\r\n\r\n"},
		"no body": {func(w *ResponseWriter) { w.WriteHeader(204); w.Write([]byte("x")) }, "HTTP/1.1 204 No Content\r\n\r\n"},
		"flushed": {func(w *ResponseWriter) { w.Flush(); w.Flush() }, ok + "transfer-encoding: chunked\r\n\r\n0\r\n\r\n"},
		"two Writes": {func(w *ResponseWriter) {
			io.WriteString(w, "abc")
			w.Write(nil)
			io.WriteString(w, strings.Repeat("x", 17))
		},
			ok + "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n11\r\n" + strings.Repeat("x", 17) + "\r\n0\r\n\r\n"},
		"two TryWrites": {func(w *ResponseWriter) {
			w.TryWrite(nil)
			w.TryWrite([]byte("abc"))
			w.TryWrite(nil)
			w.TryWrite([]byte("d"))
		},
			ok + "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"},
		"a length": {func(w *ResponseWriter) {
			w.Header().Set("content-length", "4")
			w.Write([]byte("abc"))
			w.TryWrite([]byte("d"))
		},
			ok + "Content-Length: 4\r\n\r\nabcd"},
		"a bad length": {func(w *ResponseWriter) { w.Header().Set("content-length", "+4"); w.Write([]byte("a")) },
			ok + "transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"},
		"framing of the handler's own": {func(w *ResponseWriter) { w.Header().Set("transfer-encoding", "gzip"); w.Header().Set("trailer", "x") },
			ok + "content-length: 0\r\n\r\n"},
		"line breaks":        {func(w *ResponseWriter) { w.Header().Set("a", " b\r\nc: d\n") }, ok + "A: b  c: d\r\ncontent-length: 0\r\n\r\n"},
		"an impossible name": {func(w *ResponseWriter) { w.Header()["a b:\r\n"] = []string{"x"} }, ok + "content-length: 0\r\n\r\n"},
		"a late header":      {func(w *ResponseWriter) { w.WriteHeader(200); w.Header().Set("a", "b") }, ok + "content-length: 0\r\n\r\n"},
		"a hint":             {func(w *ResponseWriter) { w.Header().Set("a", "b"); w.WriteHeader(103) }, "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + ok + "A: b\r\ncontent-length: 0\r\n\r\n"},
		"the last":           {func(w *ResponseWriter) { w.Header().Set("Connection", "close") }, ok + "connection: close\r\ncontent-length: 0\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p, done := writing(t, c.do)
			within(t, done)
			p.CloseWrite()
			if got := p.awaitClose(); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestHeadHasNoBody(t *testing.T) {
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("content-length", "5")
		}
		if n, err := w.Write([]byte("hello")); n != 5 || err != nil {
			t.Error(n, err)
		}
		if r.URL.Path == "/try" {
			w.(*ResponseWriter).TryWrite([]byte("hello"))
		}
	}, nil)
	p := w.dial(t)
	for _, path := range []string{"/", "/length", "/try", "/"} {
		p.send("HEAD " + path + " HTTP/1.1\r\nhost: x\r\n\r\n")
		if res, body := p.receive("HEAD"); res.StatusCode != 200 || body != "" || res.ContentLength > 5 {
			t.Errorf("%s: got %v %q", path, res, body)
		}
	}
}

func TestPromisedLength(t *testing.T) {
	results := make(chan error, 1)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("content-length", "5")
		io.WriteString(w, "hey")
		_, err := io.WriteString(w, strings.TrimPrefix(r.URL.Path, "/"))
		results <- err
	}, nil)
	p := w.dial(t)
	p.send("GET /ab HTTP/1.1\r\nhost: x\r\n\r\n")
	p.expect(200, "heyab")
	if err := within(t, results); err != nil {
		t.Error(err)
	}
	p.send("GET /more HTTP/1.1\r\nhost: x\r\n\r\n")
	if err := within(t, results); !errors.Is(err, http.ErrContentLength) {
		t.Errorf("too much: %v", err)
	}
	if got := p.awaitClose(); !strings.HasSuffix(got, "\r\n\r\nhey") {
		t.Errorf("too little: got %q", got)
	}
}

func TestNothingIsWrittenAfterTheHandler(t *testing.T) {
	writers := make(chan *ResponseWriter, 1)
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) { writers <- w.(*ResponseWriter) }, nil)
	p := w.dial(t)
	p.send(get)
	p.expect(200, "")
	late := within(t, writers)
	p.send(get)
	p.expect(200, "") // the connection's goroutine now serves the second request
	if _, err := late.Write([]byte("x")); !errors.Is(err, errHandlerReturned) {
		t.Errorf("Write: %v", err)
	}
	if _, err := late.TryWrite([]byte("x")); !errors.Is(err, errHandlerReturned) {
		t.Errorf("TryWrite: %v", err)
	}
	if err := late.FlushError(); !errors.Is(err, errHandlerReturned) {
		t.Errorf("Flush: %v", err)
	}
}

// filled writes until the socket and the ResponseWriter are full, and returns the accepted bytes.
func filled(t *testing.T, w *ResponseWriter, piece func(i int) []byte) (taken []byte) {
	for i := 0; ; i++ {
		b := piece(i)
		whole, err := w.TryWrite(b)
		switch {
		case errors.Is(err, ErrFull) && !whole:
			return taken
		case err != nil || len(taken) > 64<<20:
			t.Errorf("after %d bytes: %v", len(taken), err)
			return taken
		}
		taken = append(taken, b...)
		if !whole {
			if _, err := w.TryWrite([]byte("refused")); !errors.Is(err, ErrFull) {
				t.Errorf("TryWrite on a full writer: %v, want ErrFull", err)
			}
		}
	}
}

func TestTryWriteNeverWaits(t *testing.T) {
	for name, size := range map[string]int{"small": 100, "large": 100 << 10} {
		t.Run(name, func(t *testing.T) {
			full, proceed := make(chan []byte, 1), make(chan bool)
			p, _ := writing(t, func(w *ResponseWriter) {
				soon := time.Now().Add(100 * time.Millisecond)
				w.SetWriteDeadline(soon)
				if err := w.FlushError(); err != nil {
					t.Error(err)
				}
				// Flush did not wait, so its deadline must not affect the writes that follow.
				time.Sleep(time.Until(soon))
				taken := filled(t, w, func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, size) })
				w.SetWriteDeadline(time.Time{})
				full <- taken
				<-proceed
				for { // the peer reads from here on
					if whole, err := w.TryWrite([]byte("then")); err == nil {
						if !whole {
							w.Flush()
						}
						break
					} else if !errors.Is(err, ErrFull) {
						t.Error(err)
						break
					}
					time.Sleep(time.Millisecond)
				}
				w.Write([]byte(" the end"))
			})
			taken := within(t, full)
			proceed <- true
			p.expect(200, string(taken)+"then the end")
			p.send(get) // the connection serves another request
			taken = within(t, full)
			proceed <- true
			p.expect(200, string(taken)+"then the end")
		})
	}
}

// TestBufferedBytesAreSentFirst: bytes that TryWrite has buffered are sent before later ones.
func TestBufferedBytesAreSentFirst(t *testing.T) {
	for name, then := range map[string]func(*ResponseWriter){
		"Write":   func(w *ResponseWriter) { w.Write([]byte("!")) },
		"Flush":   func(w *ResponseWriter) { w.Flush() },
		"the end": func(w *ResponseWriter) {},
		"many tries": func(w *ResponseWriter) {
			for n := 0; n < 100; n++ {
				w.TryWrite(nil)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			full := make(chan []byte, 1)
			p, _ := writing(t, func(w *ResponseWriter) {
				full <- filled(t, w, func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, 5000) })
				then(w)
			})
			want := string(within(t, full))
			if name == "Write" {
				want += "!"
			}
			p.expect(200, want)
		})
	}
}

// TestWriteDeadlineIsFinal: after the write deadline has passed, all writes fail, even if the
// deadline is moved.
func TestWriteDeadlineIsFinal(t *testing.T) {
	errs := make(chan error, 3)
	p, done := writing(t, func(w *ResponseWriter) {
		filled(t, w, func(int) []byte { return make([]byte, 1000) })
		w.SetWriteDeadline(time.Now().Add(time.Millisecond))
		errs <- w.FlushError()
		w.SetWriteDeadline(time.Time{})
		_, err := w.Write([]byte("x"))
		errs <- err
		_, err = w.TryWrite([]byte("x"))
		errs <- err
	})
	within(t, done)
	for range 3 {
		if err := <-errs; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the deadline: %v", err)
		}
	}
	if got := p.awaitClose(); strings.HasSuffix(got, "0\r\n\r\n") {
		t.Error("the cut response ends like a complete one")
	}
}

func TestWritesAfterDisconnect(t *testing.T) {
	errs := make(chan error, 2)
	p, done := writing(t, func(w *ResponseWriter) {
		var err error
		for end := time.Now().Add(patience); (err == nil || errors.Is(err, ErrFull)) && time.Now().Before(end); {
			_, err = w.TryWrite([]byte("x"))
		}
		errs <- err
		_, err = w.Write([]byte("x"))
		errs <- err
	})
	p.Close()
	within(t, done)
	if first, second := <-errs, <-errs; first == nil || errors.Is(first, ErrFull) || !errors.Is(second, first) {
		t.Errorf("got %v, then %v", first, second)
	}
}

// TestRandomWrites: the peer reads exactly the bytes that the handler has written, for random
// writes and reads.
func TestRandomWrites(t *testing.T) {
	type response struct {
		seed uint64
		want chan []byte
	}
	next := make(chan response, 1)
	var tries [3]int // results of TryWrite: sent whole, buffered, refused
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		now := <-next
		now.want <- writeRandomly(t, w.(*ResponseWriter), rand.New(rand.NewPCG(now.seed, 1)), &tries)
	}, nil)
	p := w.dial(t)
	for seed := range uint64(1000) {
		now := response{seed, make(chan []byte, 1)}
		next <- now
		p.SetDeadline(time.Now().Add(patience))
		p.send(get)
		res, err := http.ReadResponse(p.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := readSlowly(res.Body, rand.New(rand.NewPCG(seed, 2)))
		if want := within(t, now.want); !bytes.Equal(got, want) {
			t.Fatalf("seed %d: got %d bytes, want %d", seed, len(got), len(want))
		}
	}
	if t.Logf("sent whole, buffered, refused: %v", tries); slices.Contains(tries[:], 0) {
		t.Error("the test does not cover all results of TryWrite")
	}
}

// writeRandomly writes with random calls, from random goroutines, and returns the accepted bytes.
// tries counts the results of TryWrite.
func writeRandomly(t *testing.T, w *ResponseWriter, r *rand.Rand, tries *[3]int) (wrote []byte) {
	data := make([]byte, 64<<10)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	for range r.IntN(25) {
		size := []int{0, 1, 200, 5000, maxCopied, maxCopied + 1, 50 << 10}[r.IntN(7)]
		b := data[r.IntN(100):][:size]
		write := func() {
			switch r.IntN(6) {
			case 0:
				if n, err := w.Write(b); n != len(b) || err != nil {
					t.Error(n, err)
				}
			case 1:
				if err := w.FlushError(); err != nil {
					t.Error(err)
				}
				b = nil
			default:
				whole, err := w.TryWrite(b)
				switch {
				case errors.Is(err, ErrFull):
					b = nil
					tries[2]++
				case err != nil:
					t.Error(err)
				case whole:
					tries[0]++
				default:
					tries[1]++
				}
			}
		}
		if done := make(chan bool); r.IntN(2) == 0 { // any goroutine may write
			go func() { write(); close(done) }()
			<-done
		} else {
			write()
		}
		wrote = append(wrote, b...)
	}
	return wrote
}

// readSlowly reads to the end in random pieces with random pauses.
func readSlowly(from io.Reader, r *rand.Rand) (got []byte) {
	b := make([]byte, 64<<10)
	for {
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
		}
		n, err := from.Read(b[:1+r.IntN(len(b))])
		got = append(got, b[:n]...)
		if err != nil {
			return got
		}
	}
}

func TestInvalidStatusPanics(t *testing.T) {
	w := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		for _, code := range []int{0, 99, 1000, 101} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("WriteHeader(%d) does not panic", code)
					}
				}()
				w.WriteHeader(code)
			}()
		}
	}, nil)
	p := w.dial(t)
	p.send(get)
	p.expect(200, "")
}
