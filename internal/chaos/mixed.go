package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
)

// startMixed adds the traffic of a soak that is neither a stream nor a small request. These are
// clients that disconnect, WebSockets, gRPC calls and tasks, two of each per second.
func (l *load) startMixed() {
	for name, once := range map[string]func(context.Context, int) error{
		"disconnect": l.disconnect,
		"websocket":  l.webSocket,
		"grpc":       l.grpcCall,
		"task":       l.task,
	} {
		l.clients.Go(func() {
			for n := 0; sleep(l.opening, 500*time.Millisecond); n++ {
				if err := once(l.opening, n); err != nil && l.opening.Err() == nil {
					l.mu.Lock()
					l.lost[name+": "+err.Error()]++
					l.mu.Unlock()
				}
			}
		})
	}
}

// disconnect opens a stream and leaves it after a third of a second.
func (l *load) disconnect(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	s := &stream{kind: kinds[n%2], client: http.DefaultClient, url: l.world.url, prompt: n % prompts}
	if err := s.read(ctx); ctx.Err() == nil {
		return fmt.Errorf("the stream has ended before its client left: %w", err)
	}
	return nil
}

// webSocket opens a WebSocket, has one request answered, and closes it.
func (l *load) webSocket(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, l.world.url+"/v1/realtime", nil) //nolint:bodyclose // the body of a WebSocket is the WebSocket
	if err != nil {
		return err
	}
	defer ws.CloseNow() //nolint:errcheck // closed already after an answer
	start := map[string]any{"type": "start", "request_id": fmt.Sprint("ws-", n), "model": "managed",
		"messages": []map[string]string{{"role": "user", "content": "Hello"}}, "params": map[string]int{"max_tokens": 5}}
	if err := wsjson.Write(ctx, ws, start); err != nil {
		return err
	}
	for {
		var m struct{ Type string }
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			return err
		}
		switch m.Type {
		case "final":
			return ws.Close(websocket.StatusNormalClosure, "")
		case "error":
			return errors.New("an error message")
		}
	}
}

// grpcCall has one request answered by gRPC.
func (l *load) grpcCall(ctx context.Context, _ int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(strings.TrimPrefix(l.world.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the call has ended
	answer, err := llmv1.NewInferenceClient(conn).Stream(ctx, &llmv1.StartRequest{Model: "managed", Messages: []string{"Hello"}, MaxTokens: 5})
	if err != nil {
		return err
	}
	for {
		if _, err := answer.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// task is admitted a task, works for a moment, and completes it. What is admitted is completed even
// if the load has ended, because the gateway counts a task until its lease ends.
func (l *load) task(ctx context.Context, _ int) error {
	var decision struct {
		Wait *int   `json:"wait_for_ms"`
		Task string `json:"task_id"`
	}
	whole := context.WithoutCancel(ctx)
	for {
		if err := l.post(whole, "/schedule", `{"model":"small","estimated_tokens":50}`, &decision); err != nil {
			return err
		}
		if decision.Task != "" {
			break
		}
		if !sleep(ctx, time.Duration(*decision.Wait)*time.Millisecond) {
			return ctx.Err()
		}
	}
	sleep(ctx, 100*time.Millisecond)
	return l.post(whole, "/complete", fmt.Sprintf(`{"task_id":%q,"actual_tokens":40}`, decision.Task), nil)
}

// post sends a JSON body and reads a JSON answer, unless answer is nil.
func (l *load) post(ctx context.Context, path, text string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.world.url+path, strings.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.tasks.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return errors.New(path + ": " + resp.Status)
	}
	if answer == nil {
		return discard(resp.Body)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}
