package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// load is the traffic of one world: streams, and small requests at a steady rate.
type load struct {
	world *world
	texts *texts
	// cancel ends all requests at once.
	cancel context.CancelFunc
	// opening is done when no new requests are to be sent.
	opening     context.Context
	stopOpening context.CancelFunc
	clients     sync.WaitGroup
	// tasks is the client of the batch API.
	tasks http.Client

	mu sync.Mutex
	// from is when the fault began. What ended before it does not count.
	from time.Time
	// sent counts the small requests, lost those without a response, by reason.
	sent int
	lost map[string]int
	// early counts the streams that failed before the fault, by reason.
	early map[string]int
	// broken counts the small requests whose response had begun and was not whole.
	broken int
	// lastLost is when a request was lost the last time, slowest the longest time of one that was
	// not.
	lastLost time.Time
	slowest  time.Duration
	// streams is what became of the streams, by kind.
	streams map[string]*streamCount
	// goodSince is since when each small request has been answered.
	goodSince time.Time
}

// streamCount is what became of the streams of one kind.
type streamCount struct {
	whole, cut, lost, wrong, resumed int
	// reasons are the errors of streams that were cut or lost.
	reasons map[string]int
}

func newLoad(w *world, texts *texts) *load {
	l := &load{world: w, texts: texts, lost: map[string]int{}, early: map[string]int{}, streams: map[string]*streamCount{}}
	for _, k := range kinds {
		l.streams[k.name] = &streamCount{reasons: map[string]int{}}
	}
	return l
}

// start opens the streams, spread over the time of one, and begins to send small requests.
func (l *load) start(ctx context.Context) {
	ctx, l.cancel = context.WithCancel(ctx)
	l.opening, l.stopOpening = context.WithCancel(ctx)
	transport := &http.Transport{MaxIdleConnsPerHost: l.world.streams, DisableCompression: true}
	client := &http.Client{Transport: transport}
	for i := range l.world.streams {
		l.clients.Go(func() { l.keepStream(ctx, client, kinds[i%len(kinds)], i) })
	}
	l.clients.Go(func() { l.sendSmall(ctx) })
	l.goodSince = time.Now()
}

// keepStream reads stream after stream until no new ones are to be opened.
func (l *load) keepStream(ctx context.Context, client *http.Client, k kind, i int) {
	if !sleep(l.opening, time.Duration(i)*3*time.Second/time.Duration(l.world.streams)) {
		return
	}
	for n := 0; l.opening.Err() == nil; n++ {
		s := &stream{kind: k, client: client, url: l.world.url, prompt: (i + n) % prompts}
		if k.resumable {
			s.id = fmt.Sprintf("chaos-%d-%d-%d", i, n, time.Now().UnixNano())
		}
		err := s.read(ctx)
		if ctx.Err() != nil {
			return
		}
		l.streamEnded(s, err)
		if err != nil {
			sleep(l.opening, 500*time.Millisecond)
		}
	}
}

// streamEnded counts a stream that has ended after the fault began.
func (l *load) streamEnded(s *stream, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from.IsZero() {
		if err != nil {
			l.early[reason(err)]++
		}
		return
	}
	c, right := l.streams[s.name], l.texts.answers[s.prompt]
	c.resumed += s.resumed
	switch {
	case !strings.HasPrefix(right, s.text.String()) || err == nil && s.text.String() != right:
		c.wrong++
		c.reasons[fmt.Sprintf("wrong text after %d bytes", s.text.Len())]++
	case err == nil:
		c.whole++
	case s.begun:
		c.cut++
		c.reasons[reason(err)]++
	default:
		c.lost++
		c.reasons[reason(err)]++
	}
}

// sendSmall sends small requests at the rate of the options, whether earlier ones were answered or
// not.
func (l *load) sendSmall(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 60 * time.Second}
	tick := time.NewTicker(time.Second / time.Duration(l.world.rate))
	defer tick.Stop()
	for {
		select {
		case <-l.opening.Done():
			return
		case <-tick.C:
			l.clients.Go(func() { l.small(ctx, client) })
		}
	}
}

// small sends one small request and counts its outcome.
func (l *load) small(ctx context.Context, client *http.Client) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.world.url+"/v1/chat/completions",
		strings.NewReader(fmt.Sprintf(`{"model":"small","max_tokens":2,"messages":[{"role":"user","content":"Hello, I am number %d"}]}`, began.UnixNano())))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	var content bytes.Buffer
	resp, err := client.Do(req)
	begun := err == nil
	if begun {
		_, err = io.Copy(&content, resp.Body)
		resp.Body.Close()
	}
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	ok := begun && err == nil && resp.StatusCode == http.StatusOK
	if !ok {
		l.goodSince = now
	}
	if l.from.IsZero() || began.Before(l.from) && ok {
		return
	}
	l.sent++
	switch {
	case ok:
		l.slowest = max(l.slowest, now.Sub(began))
	case begun && resp.StatusCode == http.StatusOK:
		l.broken++
	case begun:
		l.lost[reason(errRefused{resp.StatusCode, content.String()})]++
		l.lastLost = now
	default:
		l.lost[reason(err)]++
		l.lastLost = now
	}
}

// steadyLimit is how long the load may take to run without a failure.
const steadyLimit = 60 * time.Second

// awaitSteady waits until the streams have begun and small requests have been answered for 3 s.
func (l *load) awaitSteady(ctx context.Context) error {
	if !sleep(ctx, 5*time.Second) {
		return ctx.Err()
	}
	deadline := time.Now().Add(steadyLimit)
	for time.Now().Before(deadline) {
		l.mu.Lock()
		good := time.Since(l.goodSince)
		l.mu.Unlock()
		if good > 3*time.Second {
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.early) > 0 {
				fmt.Fprintln(os.Stderr, "streams that failed before the fault:", counts(l.early))
			}
			return nil
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	return errors.New("small requests fail before the fault")
}

// mark says that the fault begins now.
func (l *load) mark(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from.IsZero() {
		l.from = now
	}
}

// recoveryLimit is how long small requests may fail after a fault.
const recoveryLimit = 90 * time.Second

// awaitRecovery waits until small requests have been answered for 5 s, and until no condition needs
// attention. It waits at least 10 s, because the effect of a fault may come late. It reports
// whether all was well before the limit.
func (l *load) awaitRecovery(ctx context.Context) bool {
	deadline := time.Now().Add(recoveryLimit)
	sleep(ctx, 10*time.Second)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		l.mu.Lock()
		good := time.Since(l.goodSince)
		l.mu.Unlock()
		if all, err := l.world.attention(ctx); err == nil && good > 5*time.Second && onlyEvil(all) {
			return true
		}
		sleep(ctx, 200*time.Millisecond)
	}
	return false
}

// onlyEvil reports whether all conditions are about the engine that misbehaves on purpose.
func onlyEvil(all []conditionView) bool {
	return !slices.ContainsFunc(all, func(c conditionView) bool { return !isEvil(c) })
}

// stop opens no new requests, waits for those that run, and ends what lasts too long.
func (l *load) stop() {
	l.stopOpening()
	done := make(chan struct{})
	go func() {
		l.clients.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * tokensOfStream * 100 * time.Millisecond):
	}
	l.cancel()
	<-done
}

func (l *load) result(f fault, from time.Time, recovered bool) *result {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &result{fault: f, sent: l.sent, lost: l.lost, broken: l.broken, streams: l.streams, slowest: l.slowest, recovered: recovered}
	if !l.lastLost.IsZero() {
		r.recovery = l.lastLost.Sub(from)
	}
	return r
}

// reason makes one short text of all errors of one sort.
func reason(err error) string {
	var refused errRefused
	if errors.As(err, &refused) {
		_, code, _ := strings.Cut(refused.message, `"code":"`)
		code, _, _ = strings.Cut(code, `"`)
		return strings.TrimSpace(fmt.Sprint(refused.status, " ", code))
	}
	text := err.Error()
	for _, known := range []string{"connection refused", "connection reset", "EOF", "Client.Timeout", "without [DONE]"} {
		if strings.Contains(text, known) {
			return known
		}
	}
	code, _, _ := strings.Cut(text, ":")
	return code
}

// counts writes reasons with their numbers, the most frequent first.
func counts(reasons map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int { return reasons[b] - reasons[a] })
	var parts []string
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%d × %s", reasons[k], k))
	}
	return strings.Join(parts, ", ")
}

// sleep waits for d, and returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
