package news

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// asked is what is remembered of a replica between two questions. One question at a time uses it.
type asked struct {
	replica engines.Replica
	client  *http.Client
	// recognised is the recipe of a server that somebody else runs; nil: it is not known yet.
	recognised *recipe
	// bySign says that a document has revealed the engine, whose metrics the server does not show.
	bySign    bool
	documents map[string]document
	prefill   prefillRate
	news      News
	// failures counts the questions in a row that had no answer. absent says that the last one
	// found no metrics that Sluice knows, refused that the replica shows this gateway none.
	failures        int
	absent, refused bool
}

// document is a JSON document of a replica. value is nil if the replica has no such document. next
// is when it is fetched again. fault says why the last fetch told neither.
type document struct {
	value any
	next  time.Time
	fault error
}

// statusError is the fault of a replica that answers with another status than 200.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string { return fmt.Sprintf("%s answered %d", e.path, e.status) }

// isRefusal reports whether a fault says that the replica shows this gateway nothing. It is not
// just busy.
func isRefusal(err error) bool {
	var answer *statusError
	return errors.As(err, &answer) && answer.status < 500 && answer.status != http.StatusTooManyRequests
}

// errAbsent is the fault of a replica that has no metrics which Sluice knows.
var errAbsent = errors.New("the server has no metrics of a known engine")

// ask asks the replica once and updates what is remembered of it.
func (r *Reader) ask(ctx context.Context, a *asked) {
	err := r.tryToAsk(ctx, a)
	a.absent, a.refused = errors.Is(err, errAbsent), isRefusal(err)
	if err != nil {
		a.failures++
		a.news.Fault = err.Error()
		return
	}
	a.failures, a.news.Fault, a.news.At = 0, "", time.Now()
}

// tryToAsk is ask without what follows from its error.
func (r *Reader) tryToAsk(ctx context.Context, a *asked) error {
	b := r.book.Load()
	if a.replica.Launcher != engines.Upstream {
		return r.askEngine(ctx, a, b.models[a.replica.Model])
	}
	if a.recognised != nil {
		ask := r.askEngine
		if a.bySign {
			ask = r.askBySign
		}
		if err := ask(ctx, a, a.recognised); !errors.Is(err, errAbsent) {
			return err
		}
		a.recognised, a.bySign, a.news = nil, false, silence() // another server has taken its place
	}
	for _, path := range b.paths {
		p, err := r.fetchPage(ctx, a, path, b.wanted)
		if errors.Is(err, errAbsent) {
			continue
		} else if err != nil {
			return err
		}
		if a.recognised = b.recognise(path, p); a.recognised != nil {
			r.apply(ctx, a, a.recognised, p)
			return nil
		}
	}
	fault := errAbsent
	for _, p := range b.signed {
		err := r.askBySign(ctx, a, p)
		if err == nil {
			a.recognised, a.bySign = p, true
			return nil
		}
		if !errors.Is(err, errAbsent) {
			fault = err
		}
	}
	return fault
}

// askBySign asks a replica that shows no metrics for its documents. The error is errAbsent if the
// replica does not have the sign of the recipe.
func (r *Reader) askBySign(ctx context.Context, a *asked, recipe *recipe) error {
	fault := errAbsent
	for _, place := range recipe.sign {
		d := r.document(ctx, a, place.Document)
		if hasField(d.value, place.Fields[0]) {
			r.apply(ctx, a, recipe, nil)
			return nil
		}
		if d.fault != nil {
			fault = d.fault
		}
	}
	return fault
}

// askEngine asks a replica whose engine is known. A nil recipe has nothing to ask for.
func (r *Reader) askEngine(ctx context.Context, a *asked, recipe *recipe) error {
	if recipe == nil {
		return errAbsent
	}
	a.news.Engine = recipe.engine
	if recipe.silent() {
		return errAbsent
	}
	var p page
	if recipe.path != "" {
		var err error
		if p, err = r.fetchPage(ctx, a, recipe.path, recipe.wanted); err != nil {
			return err
		}
		if len(p) == 0 && len(recipe.wanted) > 0 {
			return errAbsent
		}
	}
	r.apply(ctx, a, recipe, p)
	return nil
}

// apply sets the news by what a page and the documents of the replica say.
func (r *Reader) apply(ctx context.Context, a *asked, recipe *recipe, p page) {
	var values [figureCount]float64
	var found [figureCount]int // how many series the value is the sum of
	for i, figure := range recipe.figures {
		for _, place := range figure {
			if place.Document == "" {
				values[i], found[i] = p.sum(place)
			} else {
				values[i], found[i] = r.documentValue(ctx, a, place)
			}
			if found[i] > 0 {
				values[i] = min(max(0, values[i]), maxNumber)
				break
			}
		}
	}
	n := silence()
	n.Engine, n.At = recipe.engine, a.news.At
	n.Slots, n.UsualSlots = int(values[slots]), recipe.usualSlots
	if found[running] > 0 {
		n.Running = int(values[running])
	}
	if found[waiting] > 0 {
		n.Waiting = int(values[waiting])
	}
	if found[kvUsage] > 0 {
		n.KVUsage = min(1, values[kvUsage]/float64(found[kvUsage])) // the mean of data-parallel engines
	}
	n.CacheTokens = int(values[cacheTokens])
	if found[cachedTokens] > 0 {
		n.CachedTokens = int64(values[cachedTokens])
	}
	if found[prefillTokens] > 0 && found[prefillSeconds] > 0 {
		n.PrefillRate = a.prefill.observe(values[prefillTokens], values[prefillSeconds])
	}
	a.news = n
}

// silence is the news of a replica that has told nothing.
func silence() News { return News{Running: -1, Waiting: -1, KVUsage: -1, CachedTokens: -1} }

// maxNumber bounds what an engine may say, so that sums over replicas do not overflow.
const maxNumber = 1e15

// documentValue returns the value of a place in a document, and 1 if there is a value.
func (r *Reader) documentValue(ctx context.Context, a *asked, place engines.Place) (value float64, found int) {
	if v, ok := product(r.document(ctx, a, place.Document).value, place.Fields); ok {
		return v, 1
	}
	return 0, 0
}

// document returns the document at the path. It is fetched if it was not for Pause. One that could
// not be fetched is fetched again sooner, and one that the replica does not have much later.
func (r *Reader) document(ctx context.Context, a *asked, path string) document {
	d, ok := a.documents[path]
	now := time.Now()
	if ok && now.Before(d.next) {
		return d
	}
	var read any
	err := r.fetch(ctx, a, path, func(body io.Reader) (err error) {
		read, err = readDocument(body)
		return err
	})
	switch {
	case err == nil:
		d = document{read, now.Add(r.Pause), nil}
	case errors.Is(err, errAbsent):
		d = document{nil, now.Add(10 * r.Pause), nil}
	default:
		d.next, d.fault = now.Add(min(5*r.Interval, r.Pause)), err
	}
	if a.documents == nil {
		a.documents = map[string]document{}
	}
	a.documents[path] = d
	return d
}

// fetchPage fetches the wanted series of the metrics at path.
func (r *Reader) fetchPage(ctx context.Context, a *asked, path string, wanted map[string]bool) (p page, err error) {
	err = r.fetch(ctx, a, path, func(body io.Reader) (err error) {
		p, err = readPage(body, wanted)
		return err
	})
	return p, err
}

// fetch gives read the body of a GET to the replica. The error is errAbsent if the replica has no
// such path.
func (r *Reader) fetch(ctx context.Context, a *asked, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	q, err := newRequest(ctx, &a.replica, path)
	if err != nil {
		return err
	}
	response, err := a.client.Do(q)
	if err != nil {
		return withoutURL(err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return errAbsent
	default:
		return &statusError{path, response.StatusCode}
	}
	if err := read(response.Body); err != nil {
		return fmt.Errorf("%s %w", path, withoutURL(err))
	}
	return nil
}

// newRequest makes a GET to a replica, as its Transport says.
func newRequest(ctx context.Context, r *engines.Replica, path string) (*http.Request, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Transport.URL(r.Address.String(), path), nil)
	if err != nil {
		return nil, err
	}
	q.Host = r.Host
	q.Header.Set("Accept", "text/plain;version=0.0.4, */*;q=0.5")
	r.Transport.SetHeaders(q.Header)
	return q, nil
}

// withoutURL removes the URL from an error of net/http, because the replica is named beside it.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}

// prefillRate is the rate of two counters: computed tokens, and the seconds in which they were.
// What is older weighs less.
type prefillRate struct {
	lastTokens, lastSeconds float64
	// tokens and seconds are the growth of the counters, each older growth weighing less by decay.
	tokens, seconds float64
	seen            bool
}

// decay is how much less the growth weighs that was observed one growth earlier. minSeconds is the
// time below which a rate says nothing.
const (
	decay      = 0.9
	minSeconds = 0.01
)

// observe returns the rate in tokens a second after the counters have these values, or 0 if it is
// not known. A counter that has become smaller was reset.
func (p *prefillRate) observe(tokens, seconds float64) float64 {
	grown, took := tokens-p.lastTokens, seconds-p.lastSeconds
	if p.seen && grown > 0 && took >= 0 {
		p.tokens, p.seconds = p.tokens*decay+grown, p.seconds*decay+took
	}
	p.lastTokens, p.lastSeconds, p.seen = tokens, seconds, true
	if p.seconds < minSeconds {
		return 0
	}
	return min(p.tokens/p.seconds, maxNumber)
}
