package grpcapi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/relay/grpcapi"
	"github.com/sluice-gateway/sluice/internal/sim"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestRefusalsOfWorkers(t *testing.T) {
	_, url := simulated(t, sim.Config{APIKey: "secret"})
	const body = `{"model":"sim","stream":true,"messages":[{"role":"user","content":"a"}]}`
	w := workers(t)
	must(t, w, url, body, http.StatusUnauthorized)
	key := []string{"Authorization", "Bearer secret"}
	must(t, w, url, body, http.StatusOK, key...)
	must(t, w, url, `{"model":"other","messages":[{"role":"user","content":"a"}]}`, http.StatusNotFound, key...)
	for fault, want := range map[string]int{"status=400": 400, "status=429": 429, "status=500": 500, "status=502": 502, "status=503": 503} {
		r, text := must(t, w, url, body, want, append(key, sim.FaultHeader, fault)...)
		if retry := r.Header.Get("Retry-After"); (retry == "1") != (want == 429 || want == 503) || !strings.Contains(text, `"message":"simulated fault"`) {
			t.Errorf("%s: Retry-After %q, %s", fault, retry, text)
		}
	}
}

// Workers of others have no Error among the details.
func TestStatusesOfWorkers(t *testing.T) {
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403, codes.NotFound: 404, codes.ResourceExhausted: 429,
		codes.Unavailable: 503, codes.DeadlineExceeded: 504, codes.Internal: 500, codes.Unknown: 500,
		codes.Canceled: 502, codes.Unimplemented: 500,
	} {
		for _, early := range []bool{false, true} {
			url := script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
				if early {
					_ = out.SendHeader(nil)
				}
				return status.Error(code, "why")
			})
			_, text := must(t, workers(t), url, `{"stream":true,"messages":[{"role":"user","content":"a"}]}`, want)
			if !strings.Contains(text, `"message":"why"`) {
				t.Error(text)
			}
		}
	}
	url := script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Error{Error: &pb.Error{Code: 422, Message: "no"}}})
	})
	must(t, workers(t), url, `{}`, 422)
	for _, code := range []int32{0, 200, 499, 600, -1} {
		url := script(t, func(*pb.StartRequest, grpc.ServerStreamingServer[pb.StreamChunk]) error {
			s, err := status.New(codes.Internal, "why").WithDetails(protoadapt.MessageV1Of(&pb.Error{Code: code, Message: "odd"}))
			if err != nil {
				t.Error(err)
			}
			return s.Err()
		})
		must(t, workers(t), url, `{}`, 502)
	}
}

func TestWorkersThatAreNotThere(t *testing.T) {
	ln := listener(t)
	url := "http://" + ln.Addr().String() + "/v1/chat/completions"
	ln.Close()
	w := workers(t)
	for range 2 { // also while gRPC waits before it tries again
		_, err := post(t.Context(), w, url, `{}`)
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" {
			t.Errorf("%T %v", err, err)
		}
	}
}

func TestStreamsThatBreak(t *testing.T) {
	_, url := simulated(t, sim.Config{})
	const body = `{"model":"sim","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"a"}]}`
	for fault, want := range map[string]struct {
		events int
		broken bool
		last   string
	}{
		"cut=2":   {3, true, "chat.completion.chunk"},
		"eof=2":   {3, true, "chat.completion.chunk"},
		"error=2": {4, false, `"message":"simulated fault"`},
		"none":    {8, false, "[DONE]"},
	} {
		r, err := post(t.Context(), workers(t), url, body, sim.FaultHeader, fault)
		if err != nil {
			t.Errorf("%s: %v", fault, err)
			continue
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		list := data(t, string(b))
		if (err != nil) != want.broken || len(list) != want.events || !strings.Contains(list[len(list)-1], want.last) {
			t.Errorf("%s: %d events, the last %s, then %v", fault, len(list), list[len(list)-1], err)
		}
		if _, err := post(t.Context(), workers(t), url, strings.Replace(body, `"stream":true`, `"stream":false`, 1), sim.FaultHeader, fault); (err != nil) != want.broken {
			t.Errorf("%s, not streamed: %v", fault, err)
		}
	}
	// What cannot be read is the worker's error, or that of a connection, as its status was there
	// by then or not.
	r, err := post(t.Context(), workers(t), url, body, sim.FaultHeader, "malformed=2")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err == nil && !strings.Contains(string(b), `{"error":`) || strings.Contains(string(b), "[DONE]") {
		t.Errorf("malformed: %s, then %v", b, err)
	}
	if r, err := post(t.Context(), workers(t), url, body, sim.FaultHeader, "reset-before-headers"); err == nil {
		t.Errorf("status %d of a connection that was reset", r.StatusCode)
	}
}

// A status OK without a result is no end.
func TestStreamsWithoutAResult(t *testing.T) {
	for n := range 2 {
		url := script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
			for range n {
				_ = out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: &pb.TokenDelta{Text: "a"}}})
			}
			return nil
		})
		r, err := post(t.Context(), workers(t), url, `{"stream":true}`)
		if err == nil {
			_, err = io.ReadAll(r.Body)
			r.Body.Close()
		}
		if err == nil {
			t.Errorf("no error after %d chunks", n)
		}
	}
}

func TestNonsenseOfWorkers(t *testing.T) {
	for _, d := range []*pb.TokenDelta{{Choice: -1, Text: "a"}, {Choice: 1 << 30, Text: "a"}} {
		url := script(t, func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
			return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: d}})
		})
		if _, err := post(t.Context(), workers(t), url, `{}`); err == nil {
			t.Error("no error")
		}
		r, err := post(t.Context(), workers(t), url, `{"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("no error")
		}
		r.Body.Close()
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

func TestCancellationReachesTheEngine(t *testing.T) {
	e, url := simulated(t, sim.Config{TokenInterval: time.Hour})
	const body = `{"model":"sim","stream":true,"messages":[{"role":"user","content":"a"}]}`
	w := workers(t)
	for name, leave := range map[string]func(context.CancelFunc, *http.Response){
		"context": func(cancel context.CancelFunc, _ *http.Response) { cancel() },
		"close":   func(_ context.CancelFunc, r *http.Response) { r.Body.Close() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := post(ctx, w, url, body)
		if err != nil {
			t.Fatal(err)
		}
		if e.State().Running != 1 {
			t.Errorf("%s: %d run", name, e.State().Running)
		}
		leave(cancel, r)
		eventually(t, name+" frees the slot", func() bool { return e.State().Running == 0 })
		_, err = io.ReadAll(r.Body)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: reading goes on with %v", name, err)
		}
		r.Body.Close()
		cancel()
	}
	// Before there is a response.
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := post(ctx, w, url, body, sim.FaultHeader, "hang")
		failed <- err
	}()
	eventually(t, "the engine has it", func() bool { return e.State().Requests == 3 })
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDeadlineReachesTheEngine(t *testing.T) {
	e, url := simulated(t, sim.Config{TokenInterval: time.Hour})
	w := workers(t)
	var r *http.Response
	within := 100 * time.Millisecond
	testutil.EventuallyNil(t, "the response begins before the deadline", func() (err error) {
		within *= 2 // a busy machine needs longer
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if r, err = post(ctx, w, url, `{"model":"sim","stream":true,"messages":[{"role":"user","content":"a"}]}`); err != nil {
			cancel()
			return err
		}
		t.Cleanup(cancel)
		return nil
	})
	defer r.Body.Close()
	// The engine may be the first to say that the time is up: then it is the end of a length.
	if b, err := io.ReadAll(r.Body); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(string(b), `"length"`) {
		t.Errorf("%s, then %v", b, err)
	}
	eventually(t, "the slot is free", func() bool { return e.State().Running == 0 })
}

// accepts counts connections.
type accepts struct {
	net.Listener
	count chan struct{}
}

func (a accepts) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.count <- struct{}{}
	}
	return conn, err
}

func TestConnectionsAreKeptAndClosed(t *testing.T) {
	ln := accepts{listener(t), make(chan struct{}, 100)}
	server := grpc.NewServer()
	pb.RegisterInferenceServer(server, scripted{do: func(_ *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
		return out.Send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: &pb.FinalResult{}}})
	}})
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	url := "http://" + ln.Addr().String() + "/v1/chat/completions"
	w := &grpcapi.Workers{Idle: time.Hour}
	t.Cleanup(w.Close)
	for range 5 {
		must(t, w, url, `{}`, 200)
	}
	if len(ln.count) != 1 {
		t.Errorf("%d connections for one address", len(ln.count))
	}
	w.CloseIdleConnections()
	must(t, w, url, `{}`, 200)
	if len(ln.count) != 2 {
		t.Errorf("%d connections after the first was closed", len(ln.count))
	}
	short := &grpcapi.Workers{Idle: time.Nanosecond}
	t.Cleanup(short.Close)
	eventually(t, "an idle connection is closed", func() bool {
		must(t, short, url, `{}`, 200)
		return len(ln.count) >= 4
	})
	w.Close()
	if _, err := post(t.Context(), w, url, `{}`); err == nil {
		t.Error("a call after Close")
	}
}
