package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// namedCall starts or joins a gRPC call with a request id. The func reads the call to its end.
func namedCall(ctx context.Context, g *harness.Gateway, id string) (first string, rest func() (string, error)) {
	g.T.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(g.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { conn.Close() })
	s, err := llmv1.NewInferenceClient(conn).Stream(ctx, &llmv1.StartRequest{RequestId: id,
		Request: []byte(harness.ChatBody("managed", true, 300, "tell me a story"))})
	if err != nil {
		g.T.Fatal(err)
	}
	for first == "" {
		chunk, err := s.Recv()
		if err != nil {
			g.T.Fatalf("%s: %v", id, err)
		}
		first = chunk.GetDelta().GetText()
	}
	return first, func() (string, error) {
		text := first
		for final := false; ; {
			chunk, err := s.Recv()
			switch {
			case errors.Is(err, io.EOF) && final:
				return text, nil
			case err != nil:
				return text, err
			}
			text += chunk.GetDelta().GetText()
			final = final || chunk.GetFinal() != nil
		}
	}
}

// A gRPC call with a request id that runs at the old process is joined at the new one. It is joined
// also when the client that has started it has left.
func TestE2E_X20_S10_GRPCCallsAreJoinedAtTheOldProcess(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(upgradeModels, "{mode: managed}", "{mode: managed, resume: 30s}", 1))
	_, rest := namedCall(t.Context(), g, "kept")
	left, leave := context.WithCancel(t.Context())
	namedCall(left, g, "left")
	restart(g)
	leave()
	_, joined := namedCall(t.Context(), g, "kept")
	_, again := namedCall(t.Context(), g, "left")
	texts := map[string]int{}
	for name, read := range map[string]func() (string, error){"the first client": rest, "the one that joins": joined, "the one that comes back": again} {
		text, err := read()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		texts[text]++
	}
	if len(texts) != 1 {
		t.Errorf("%d different texts", len(texts))
	}
	if n := g.Generations("managed-0"); n != 2 {
		t.Errorf("%d generations", n)
	}
	g.AwaitIdle("managed")
}

// backgroundStore is an upstream that generates responses in the background. The stream of a
// response has the events that the test has made.
type backgroundStore struct {
	mu      sync.Mutex
	changed *sync.Cond
	// events are the events of each response so far.
	events map[string]int
	// asked is told of each request for a response, which waits for answer.
	asked, answer chan struct{}
}

// lastEvent is the number of the last event of a response.
const lastEvent = 5

// setEvents makes events of a response, up to that of this number.
func (s *backgroundStore) setEvents(id string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[id] = n
	s.changed.Broadcast()
}

func (s *backgroundStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, "/v1/responses/")
	switch {
	case harness.ServeModelList(w, r, "m"):
	case r.Method == http.MethodPost:
		_, _ = io.Copy(io.Discard, r.Body)
		s.asked <- struct{}{}
		<-s.answer
		s.mu.Lock()
		id = fmt.Sprint("resp_", len(s.events)+1)
		s.events[id] = 0
		s.mu.Unlock()
		s.stream(w, r, id, 0)
	case r.URL.Query().Has("stream"):
		after, _ := strconv.Atoi(r.URL.Query().Get("starting_after"))
		s.stream(w, r, id, after+1)
	default:
		w.Header().Set("content-type", "application/json")
		fmt.Fprintf(w, `{"object":"response","status":"in_progress","id":%q,"output":[]}`, id)
	}
}

// stream sends the events of a response from one on.
func (s *backgroundStore) stream(w http.ResponseWriter, r *http.Request, id string, from int) {
	defer context.AfterFunc(r.Context(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})()
	w.Header().Set("content-type", "text/event-stream")
	for n := from; n <= lastEvent; n++ {
		s.mu.Lock()
		for s.events[id] < n && r.Context().Err() == nil {
			s.changed.Wait()
		}
		s.mu.Unlock()
		kind, more := "output_text.delta", `"delta":"word "`
		switch n {
		case 0:
			kind, more = "created", `"response":{"object":"response","id":"`+id+`","status":"in_progress"}`
		case lastEvent:
			kind, more = "completed", `"response":{"object":"response","id":"`+id+`","status":"completed","usage":{"input_tokens":7,"output_tokens":4}}`
		}
		fmt.Fprintf(w, "event: response.%[1]s\ndata: {\"type\":\"response.%[1]s\",\"sequence_number\":%[2]d,%[3]s}\n\n", kind, n, more)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
	}
}

// readUntil reads until the text has come.
func readUntil(t *testing.T, r io.Reader, text string) {
	t.Helper()
	var got []byte
	for one := make([]byte, 1); !strings.Contains(string(got), text); got = append(got, one...) {
		if _, err := io.ReadFull(r, one); err != nil {
			t.Fatalf("%v after %s", err, got)
		}
	}
}

// Responses in the background of before a restart are found at the new process, also those whose
// engine answers after the restart. A stream with a request id goes on at the old process.
func TestE2E_X20_R7_BackgroundResponsesOutliveARestart(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"mode: native", "mode: managed, resume: 30s"} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			s := &backgroundStore{events: map[string]int{}, asked: make(chan struct{}, 1), answer: make(chan struct{})}
			s.changed = sync.NewCond(&s.mu)
			g := harness.Start(t, fmt.Sprintf("upstreams: [{url: %s, slots: 8}]\ndiscovered: {stream: {%s}}\n", harness.StartUpstream(t, s.ServeHTTP), stream))
			ask := func(ctx context.Context, more string) chan *http.Response {
				answered := make(chan *http.Response, 1)
				go func() {
					r, err := g.Open(ctx, "/v1/responses", `{`+more+`"model":"m","input":"x","stream":true,"background":true}`)
					if err != nil {
						t.Error(err)
					}
					answered <- r
				}()
				harness.Receive(t, s.asked, "the engine is asked")
				return answered
			}
			body := func(answered chan *http.Response) io.ReadCloser {
				r := harness.Receive(t, answered, "the request is answered")
				if r == nil {
					t.FailNow()
				}
				return r.Body
			}
			left, leave := context.WithCancel(t.Context())
			named := ask(left, `"request_id":"named",`)
			s.answer <- struct{}{}
			readUntil(t, body(named), "resp_1")
			late := ask(t.Context(), "")
			restart(g)
			leave()
			s.answer <- struct{}{}
			r := body(late)
			defer r.Close()
			readUntil(t, r, "resp_2")
			for _, id := range []string{"resp_1", "resp_2"} {
				harness.Eventually(t, id+" is found", func() error {
					if a := g.Fetch("/v1/responses/" + id); a.StatusCode != 200 {
						return fmt.Errorf("%s", a)
					}
					return nil
				})
				s.setEvents(id, lastEvent)
			}
			if text, err := io.ReadAll(r); err != nil || !strings.Contains(string(text), "response.completed") {
				t.Errorf("%v: %s", err, text)
			}
			if a := g.Fetch("/v1/responses/resp_2?stream=true&starting_after=3"); !strings.Contains(string(a.Content), `"sequence_number":5`) {
				t.Errorf("followed: %s", a)
			}
			if strings.Contains(stream, "managed") {
				a := g.Fetch("/v1/streams/named", "Last-Event-ID: 0")
				if text := string(a.Content); !strings.HasPrefix(text, "id: 1\n") || !strings.Contains(text, "response.completed") {
					t.Errorf("resumed: %s", a)
				}
			}
			g.AwaitIdle("m")
		})
	}
}
