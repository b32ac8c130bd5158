package api_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// fakeTasks is a Tasks whose answers the test sets. It records the requests.
type fakeTasks struct {
	calls    []string
	schedule func(ctx context.Context) (api.ScheduleAnswer, *openai.Error)
	lease    time.Duration
	found    bool
	fault    *openai.Error
}

func (d *fakeTasks) Schedule(ctx context.Context, r api.ScheduleRequest) (api.ScheduleAnswer, *openai.Error) {
	d.calls = append(d.calls, fmt.Sprintf("schedule %s/%s %d id=%s pool=%s model=%s wait=%v", r.Tenant, r.Priority, r.EstimatedTokens,
		r.RequestID, r.Pool, r.Model, r.MaxWait))
	if d.schedule == nil {
		return api.ScheduleAnswer{Model: "gpt-4o-mini", TaskID: "tsk_1"}, d.fault
	}
	return d.schedule(ctx)
}

func (d *fakeTasks) Complete(ctx context.Context, tenant, id string, tokens *int) (bool, *openai.Error) {
	calls := fmt.Sprintf("complete %s/%s", tenant, id)
	if tokens != nil {
		calls += fmt.Sprintf(" %d", *tokens)
	}
	if ctx.Err() != nil {
		calls += " too late"
	}
	d.calls = append(d.calls, calls)
	return d.found, d.fault
}

func (d *fakeTasks) Renew(_ context.Context, tenant, id string) (time.Duration, bool, *openai.Error) {
	d.calls = append(d.calls, fmt.Sprintf("renew %s/%s", tenant, id))
	return d.lease, d.found, d.fault
}

func post(path, body string) *http.Request {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	// the Content-Type that `curl -d` sends
	r.Header.Set("content-type", "application/x-www-form-urlencoded")
	r.Header.Set(headers.Tenant, "acme")
	r.Header.Set(headers.Priority, "batch")
	return r
}

func serve(d *fakeTasks, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	api.New(api.Config{Tasks: d}).ServeHTTP(w, r)
	return w
}

func wait(d time.Duration) func(context.Context) (api.ScheduleAnswer, *openai.Error) {
	return func(context.Context) (api.ScheduleAnswer, *openai.Error) { return api.ScheduleAnswer{Wait: d}, nil }
}

func TestTasksShapes(t *testing.T) {
	const task = `{"model_backend_id":"gpt-4o-mini","task_id":"tsk_1"}`
	const asked = "schedule acme/batch 1800 id= pool= model= wait=0s"
	for _, c := range []struct {
		name, path, body string
		fakeTasks        fakeTasks
		status           int
		want, calls      string
	}{
		{"a task", "/schedule", `{"estimated_tokens": 1800}`, fakeTasks{}, 200, task, asked},
		{"a float", "/schedule", ` {"estimated_tokens":1800.000}` + "\n", fakeTasks{}, 200, task, asked},
		{"nulls", "/schedule", `{"estimated_tokens":1800,"request_id":null,"pool":null,"model":null,"max_wait_ms":null}`, fakeTasks{}, 200, task, asked},
		{"no tokens", "/schedule", `{"estimated_tokens":-0}`, fakeTasks{}, 200, task, "schedule acme/batch 0 id= pool= model= wait=0s"},
		{"all of a pool", "/schedule", `{"estimated_tokens":2147483648,"request_id":"r-1","pool":"p","max_wait_ms":300000}`, fakeTasks{}, 200, task,
			"schedule acme/batch 2147483648 id=r-1 pool=p model= wait=5m0s"},
		{"a model", "/schedule", `{"model":"org/big","estimated_tokens":1,"max_wait_ms":1.0}`, fakeTasks{}, 200, task,
			"schedule acme/batch 1 id= pool= model=org/big wait=1ms"},
		{"a wait", "/schedule", `{"estimated_tokens":1800}`, fakeTasks{schedule: wait(250 * time.Millisecond)}, 200, `{"wait_for_ms":250}`, asked},
		{"rounded up", "/schedule", `{"estimated_tokens":1800}`, fakeTasks{schedule: wait(250*time.Millisecond + 1)}, 200, `{"wait_for_ms":251}`, asked},
		{"never 0", "/schedule", `{"estimated_tokens":1800}`, fakeTasks{schedule: wait(0)}, 200, `{"wait_for_ms":1}`, asked},
		{"a long wait", "/schedule", `{"estimated_tokens":1800}`, fakeTasks{schedule: wait(1<<63 - 1)}, 200, `{"wait_for_ms":9223372036855}`, asked},
		{"done", "/complete", `{"task_id":"tsk_1"}`, fakeTasks{found: true}, 200, `{"ok":true}`, "complete acme/tsk_1"},
		{"done, counted", "/complete", `{"task_id":"tsk_1","actual_tokens":0}`, fakeTasks{found: true}, 200, `{"ok":true}`, "complete acme/tsk_1 0"},
		{"done, usage", "/complete", `{"task_id":"tsk_1","prompt_tokens":7,"completion_tokens":5}`, fakeTasks{found: true}, 200, `{"ok":true}`,
			"complete acme/tsk_1 12"},
		{"done, prompt alone", "/complete", `{"task_id":"tsk_1","prompt_tokens":7}`, fakeTasks{found: true}, 200, `{"ok":true}`, "complete acme/tsk_1 7"},
		{"done before", "/complete", `{"task_id":"tsk_1"}`, fakeTasks{}, 404, `{"error":"Task not found"}`, "complete acme/tsk_1"},
		{"renewed", "/renew", `{"task_id":"tsk_1"}`, fakeTasks{found: true, lease: 15*time.Minute - 1}, 200, `{"ok":true,"lease_ms":899999}`, "renew acme/tsk_1"},
		{"gone", "/renew", `{"task_id":"tsk_1"}`, fakeTasks{}, 404, `{"error":"Task not found"}`, "renew acme/tsk_1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := serve(&c.fakeTasks, post(c.path, c.body))
			if w.Code != c.status || w.Body.String() != c.want {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if diff := cmp.Diff([]string{c.calls}, c.fakeTasks.calls); diff != "" {
				t.Error(diff)
			}
			if w.Header().Get(headers.Source) != headers.SourceGateway || w.Header().Get("content-type") != "application/json" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
}

func TestTasksFaults(t *testing.T) {
	long := strings.Repeat("i", 257)
	for _, c := range []struct {
		path, body, param, message string
	}{
		{"/schedule", ``, "", "is empty"},
		{"/schedule", " \n", "", "is empty"},
		{"/schedule", `estimated_tokens=5`, "", "not valid JSON"},
		{"/schedule", `{"estimated_tokens":5`, "", "not valid JSON"},
		{"/schedule", `{"estimated_tokens":5,}`, "", "not valid JSON"},
		{"/schedule", `{"estimated_tokens":5} {}`, "", "not valid JSON"},
		{"/schedule", `{"estimated_tokens":05}`, "", "not valid JSON"},
		{"/schedule", "{\"estimated_tokens\":5,\"pool\":\"\xff\"}", "", "not valid UTF-8"},
		{"/schedule", `[5]`, "", "must be a JSON object"},
		{"/schedule", `null`, "", "must be a JSON object"},
		{"/schedule", `{}`, "estimated_tokens", "estimated_tokens is missing."},
		{"/schedule", `{"estimated_tokens":null}`, "estimated_tokens", "is missing"},
		{"/schedule", `{"estimated_tokens":-1}`, "estimated_tokens", "must be a whole number from 0 to 2147483648"},
		{"/schedule", `{"estimated_tokens":2147483649}`, "estimated_tokens", "whole number"},
		{"/schedule", `{"estimated_tokens":99999999999999999999}`, "estimated_tokens", "whole number"},
		{"/schedule", `{"estimated_tokens":1.5}`, "estimated_tokens", "whole number"},
		{"/schedule", `{"estimated_tokens":1.0e3}`, "estimated_tokens", "whole number"},
		{"/schedule", `{"estimated_tokens":"5"}`, "estimated_tokens", "whole number"},
		{"/schedule", `{"estimated_tokens":true}`, "estimated_tokens", "whole number"},
		{"/schedule", `{"estimated_tokens":[5]}`, "estimated_tokens", "whole number"},
		{"/schedule", `{"estimated_tokens":5,"estimated_tokens":5}`, "estimated_tokens", "is there twice"},
		{"/schedule", `{"estimated_tokens":null,"estimated\u005ftokens":5}`, "estimated_tokens", "is there twice"},
		{"/schedule", `{"estimated_tokens":5,"max_wait":1}`, "max_wait", "max_wait is not a field of this request."},
		{"/schedule", `{"estimated_tokens":5,"Pool":"p"}`, "Pool", "is not a field"},
		{"/schedule", `{"estimated_tokens":5,"task_id":"x"}`, "task_id", "is not a field"},
		{"/schedule", `{"` + long + `":5}`, long[:100] + "…", "is not a field"},
		{"/schedule", `{"estimated_tokens":5,"max_wait_ms":300001}`, "max_wait_ms", "from 0 to 300000"},
		{"/schedule", `{"estimated_tokens":5,"request_id":""}`, "request_id", "must not be empty"},
		{"/schedule", `{"estimated_tokens":5,"request_id":7}`, "request_id", "must be a string"},
		{"/schedule", `{"estimated_tokens":5,"request_id":"` + long + `"}`, "request_id", "longer than 256 bytes"},
		{"/schedule", `{"estimated_tokens":5,"request_id":"a\nb"}`, "request_id", "control characters"},
		{"/schedule", `{"estimated_tokens":5,"request_id":"a\u0085b"}`, "request_id", "control characters"},
		{"/schedule", `{"estimated_tokens":5,"request_id":"\ud83d"}`, "request_id", "valid Unicode"},
		{"/schedule", `{"estimated_tokens":5,"pool":{}}`, "pool", "must be a string"},
		{"/schedule", `{"estimated_tokens":5,"pool":"p","model":"m"}`, "model", "exclude each other"},
		{"/complete", ``, "", "is empty"},
		{"/complete", `{}`, "task_id", "is missing"},
		{"/complete", `{"task_id":5}`, "task_id", "must be a string"},
		{"/complete", `{"task_id":"t","estimated_tokens":5}`, "estimated_tokens", "is not a field"},
		{"/complete", `{"task_id":"t","actual_tokens":-5}`, "actual_tokens", "whole number"},
		{"/complete", `{"task_id":"t","actual_tokens":5,"prompt_tokens":5}`, "actual_tokens", "give it or them"},
		{"/complete", `{"task_id":"t","completion_tokens":5}`, "prompt_tokens", "is missing beside completion_tokens"},
		{"/renew", `{}`, "task_id", "is missing"},
		{"/renew", `{"task_id":"t","lease_ms":5}`, "lease_ms", "is not a field"},
	} {
		t.Run(c.path+" "+c.message, func(t *testing.T) {
			var d fakeTasks
			w := serve(&d, post(c.path, c.body))
			checkFault(t, w, 400, "invalid_request", c.param)
			if !strings.Contains(w.Body.String(), c.message) {
				t.Errorf("%s: got %s", c.body, w.Body)
			}
			if len(d.calls) > 0 {
				t.Errorf("got through: %v", d.calls)
			}
		})
	}
}

func checkFault(t *testing.T, w *httptest.ResponseRecorder, status int, code, param string) {
	t.Helper()
	quoted := "null"
	if param != "" {
		quoted = `"` + param + `"`
	}
	want := `"code":"` + code + `","param":` + quoted + `}}`
	if w.Code != status || !strings.HasSuffix(w.Body.String(), want) || !strings.HasPrefix(w.Body.String(), `{"error":{"message":`) {
		t.Errorf("got %d %s; want %d … %s", w.Code, w.Body, status, want)
	}
}

func TestTasksRefusedRequests(t *testing.T) {
	const ok = `{"estimated_tokens":5}`
	var d fakeTasks
	checkFault(t, serve(&d, post("/schedule", ok+strings.Repeat(" ", 64<<10))), 413, "request_too_large", "")
	if w := serve(&fakeTasks{}, post("/schedule", ok+strings.Repeat(" ", 64<<10-len(ok)))); w.Code != 200 {
		t.Errorf("the largest body: %d %s", w.Code, w.Body)
	}
	encoded := post("/complete", ok)
	encoded.Header.Set("content-encoding", "gzip")
	checkFault(t, serve(&d, encoded), 415, "invalid_request", "")
	for _, path := range []string{"/schedule", "/complete", "/renew"} {
		w := serve(&d, httptest.NewRequest("GET", path, nil))
		checkFault(t, w, 405, "invalid_request", "")
		if w.Header().Get("allow") != "POST" {
			t.Errorf("headers %v", w.Header())
		}
	}
	if len(d.calls) > 0 {
		t.Errorf("got through: %v", d.calls)
	}
}

func TestNoTasks(t *testing.T) {
	w := httptest.NewRecorder()
	api.New(api.Config{}).ServeHTTP(w, post("/schedule", `{"estimated_tokens":5}`))
	checkFault(t, w, 405, "invalid_request", "")
}

func TestIdempotencyKey(t *testing.T) {
	for _, c := range []struct {
		body string
		keys []string
		// the field that the error names
		param string
	}{
		{`{"estimated_tokens":5}`, []string{"k"}, ""},
		{`{"estimated_tokens":5,"request_id":"k"}`, []string{"k"}, ""},
		{`{"estimated_tokens":5,"request_id":"other"}`, []string{"k"}, headers.IdempotencyKey},
		{`{"estimated_tokens":5}`, []string{"k", "k"}, headers.IdempotencyKey},
		{`{"estimated_tokens":5}`, []string{""}, headers.IdempotencyKey},
		{`{"estimated_tokens":5}`, []string{"\xff"}, headers.IdempotencyKey},
	} {
		r := post("/schedule", c.body)
		for _, key := range c.keys {
			r.Header.Add(headers.IdempotencyKey, key)
		}
		var d fakeTasks
		w := serve(&d, r)
		if c.param != "" {
			checkFault(t, w, 400, "invalid_request", c.param)
			continue
		}
		if diff := cmp.Diff([]string{"schedule acme/batch 5 id=k pool= model= wait=0s"}, d.calls); diff != "" {
			t.Error(diff)
		}
	}
}

// An error of the scheduler is answered in OpenAI's form, with Retry-After.
func TestTasksFail(t *testing.T) {
	for path, body := range map[string]string{"/schedule": `{"estimated_tokens":5}`, "/complete": `{"task_id":"t"}`, "/renew": `{"task_id":"t"}`} {
		w := serve(&fakeTasks{fault: &openai.Error{Code: openai.CodeRateLimited, RetryAfter: 1500 * time.Millisecond,
			Header: map[string]string{"x-ratelimit-limit-tokens": "9"}}}, post(path, body))
		checkFault(t, w, 429, "rate_limited", "")
		if w.Header().Get("retry-after") != "2" || w.Header().Get("x-ratelimit-limit-tokens") != "9" {
			t.Errorf("%s: headers %v", path, w.Header())
		}
		w = serve(&fakeTasks{fault: openai.Errorf(openai.CodeGatewayUnavailable, "The shared state does not answer.")}, post(path, body))
		checkFault(t, w, 503, "gateway_unavailable", "")
		if w.Header().Get("retry-after") != "1" {
			t.Errorf("%s: headers %v", path, w.Header())
		}
		w = serve(&fakeTasks{fault: &openai.Error{Code: openai.CodeInvalidRequest, Param: "estimated_tokens"}}, post(path, body))
		checkFault(t, w, 400, "invalid_request", "estimated_tokens")
		if w.Header().Get("retry-after") != "" {
			t.Errorf("%s: headers %v", path, w.Header())
		}
	}
}

// A caller that disconnects during a long poll ends the context of Schedule. A task that is
// admitted nevertheless is completed, unless the caller can ask for the task again.
func TestCallerLeaves(t *testing.T) {
	for _, c := range []struct {
		body  string
		calls []string
	}{
		{`{"estimated_tokens":5,"max_wait_ms":300000}`, []string{"schedule / 5 id= pool= model= wait=5m0s", "complete /late 0"}},
		{`{"estimated_tokens":5,"max_wait_ms":300000,"request_id":"r"}`, []string{"schedule / 5 id=r pool= model= wait=5m0s"}},
	} {
		entered, left := make(chan struct{}), make(chan struct{})
		d := &fakeTasks{schedule: func(ctx context.Context) (api.ScheduleAnswer, *openai.Error) {
			close(entered)
			<-ctx.Done()
			return api.ScheduleAnswer{Model: "m", TaskID: "late"}, nil
		}}
		inner := api.New(api.Config{Tasks: d})
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(left)
			inner.ServeHTTP(w, r)
		}))
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		out := bufio.NewWriter(conn)
		fmt.Fprintf(out, "POST /schedule HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s", len(c.body), c.body)
		out.Flush()
		<-entered
		conn.Close()
		<-left
		s.Close()
		if diff := cmp.Diff(c.calls, d.calls); diff != "" {
			t.Error(diff)
		}
	}
}
