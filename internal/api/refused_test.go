package api_test

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// The code of an error must be known when Envoy's log entry comes, which does not have it.
func TestErrorsAreKeptWithTheirCodes(t *testing.T) {
	for _, c := range []struct {
		path, body string
		fault      *openai.Error
		status     int
		code       openai.Code
	}{
		{"/schedule", `{"estimated_tokens":1}`, &openai.Error{Code: openai.CodeQueueFull}, 429, openai.CodeQueueFull},
		{"/schedule", `{}`, nil, 400, openai.CodeInvalidRequest},
		{"/v1/models", ``, nil, 405, openai.CodeInvalidRequest},
		{"/other", ``, nil, 405, openai.CodeInvalidRequest},
	} {
		requests := request.NewStore(0)
		var ended []request.Summary
		requests.Subscribe(request.Subscribers{Finished: []func(request.Summary){func(q request.Summary) { ended = append(ended, q) }}})
		r := post(c.path, c.body)
		r.Header.Set(headers.RequestID, "id")
		w := httptest.NewRecorder()
		api.New(api.Config{Tasks: &fakeTasks{fault: c.fault}, Requests: requests}).ServeHTTP(w, r)
		if w.Code != c.status || len(ended) > 0 {
			t.Errorf("%s: %d, %d requests ended before Envoy's log entry", c.path, w.Code, len(ended))
		}
		requests.Observe(request.Entry{Log: headers.LogRequests, RequestID: "id", Method: "POST", Path: c.path, Status: w.Code,
			Details: "via_upstream", Cluster: headers.APICluster, Attempts: 1})
		if len(ended) != 1 || ended[0].Code != string(c.code) || ended[0].Source != headers.SourceGateway || ended[0].Tenant != "acme" {
			t.Errorf("%s: %+v", c.path, ended)
		}
		if all, running := requests.List(0); len(all) != 1 || running != 0 {
			t.Errorf("%s: %d requests in the list, %d run", c.path, len(all), running)
		}
	}
}

// Envoy's log entry does not have the tenant of a request that the gateway answers itself.
func TestAnswersAreKeptWithTheirTenants(t *testing.T) {
	for path, c := range map[string]struct {
		body   string
		status int
	}{
		"/schedule": {`{"estimated_tokens":1}`, 200},
		"/complete": {`{"task_id":"none"}`, 404},
	} {
		requests := request.NewStore(0)
		var ended []request.Summary
		requests.Subscribe(request.Subscribers{Finished: []func(request.Summary){func(q request.Summary) { ended = append(ended, q) }}})
		r := post(path, c.body)
		r.Header.Set(headers.RequestID, "id")
		w := httptest.NewRecorder()
		api.New(api.Config{Tasks: &fakeTasks{}, Requests: requests}).ServeHTTP(w, r)
		if all, _ := requests.List(0); len(all) != 1 || all[0].Status != c.status || all[0].Source != headers.SourceGateway {
			t.Errorf("%s: before Envoy's log entry the list has %+v", path, all)
		}
		requests.Observe(request.Entry{Log: headers.LogRequests, RequestID: "id", Method: "POST", Path: path, Status: w.Code,
			Details: "via_upstream", Cluster: headers.APICluster, Attempts: 1})
		if w.Code != c.status || len(ended) != 1 || ended[0].Tenant != "acme" || ended[0].Code != "" || ended[0].Status != c.status || ended[0].Source != headers.SourceGateway {
			t.Errorf("%s: %d, %+v", path, w.Code, ended)
		}
		if all, running := requests.List(0); len(all) != 1 || running != 0 {
			t.Errorf("%s: %d requests in the list, %d run", path, len(all), running)
		}
	}
}

// TestWhoHasLeftIsNotKept: Envoy has told the end of a request whose caller has left, and nothing
// would join a record of it.
func TestWhoHasLeftIsNotKept(t *testing.T) {
	for _, fault := range []*openai.Error{nil, {Code: openai.CodeQueueFull}} {
		requests := request.NewStore(0)
		ctx, leave := context.WithCancel(t.Context())
		leave()
		r := post("/schedule", `{"estimated_tokens":1,"request_id":"x"}`).WithContext(ctx)
		r.Header.Set(headers.RequestID, "id")
		api.New(api.Config{Tasks: &fakeTasks{fault: fault}, Requests: requests}).ServeHTTP(httptest.NewRecorder(), r)
		if all, running := requests.List(0); len(all) != 0 || running != 0 {
			t.Errorf("%d requests in the list, %d run", len(all), running)
		}
	}
}

// TestSchedulesAreKeptWithTheirModels: the record of a call of /schedule has the own name of the
// model that was asked for. It has the pool until the pool has given a model, and the model of a
// task.
func TestSchedulesAreKeptWithTheirModels(t *testing.T) {
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat", Aliases: []string{"gpt-4"}, Launcher: engines.Upstream}}})
	queueFull := &openai.Error{Code: openai.CodeQueueFull}
	for _, c := range []struct {
		body      string
		fakeTasks fakeTasks
		want      string
	}{
		{`{"estimated_tokens":1,"model":"chat"}`, fakeTasks{schedule: wait(time.Second)}, "chat"},
		{`{"estimated_tokens":1,"model":"gpt-4"}`, fakeTasks{schedule: wait(time.Second)}, "chat"},
		{`{"estimated_tokens":1,"model":"gpt-4"}`, fakeTasks{fault: queueFull}, "chat"},
		{`{"estimated_tokens":1,"model":"other"}`, fakeTasks{fault: queueFull}, "other"},
		{`{"model":"chat"}`, fakeTasks{}, "chat"},
		{`{"estimated_tokens":1,"pool":"auto"}`, fakeTasks{fault: queueFull}, "auto"},
		{`{"estimated_tokens":1,"pool":"auto"}`, fakeTasks{}, "gpt-4o-mini"},
		{`{"estimated_tokens":1}`, fakeTasks{}, "gpt-4o-mini"},
		{`{"estimated_tokens":1}`, fakeTasks{fault: queueFull}, ""},
	} {
		requests := request.NewStore(0)
		var ended []request.Summary
		requests.Subscribe(request.Subscribers{Finished: []func(request.Summary){func(q request.Summary) { ended = append(ended, q) }}})
		r := post("/schedule", c.body)
		r.Header.Set(headers.RequestID, "id")
		w := httptest.NewRecorder()
		api.New(api.Config{Fleet: fleet, Tasks: &c.fakeTasks, Requests: requests}).ServeHTTP(w, r)
		requests.Observe(request.Entry{Log: headers.LogRequests, RequestID: "id", Method: "POST", Path: "/schedule", Status: w.Code,
			Details: "via_upstream", Cluster: headers.APICluster, Attempts: 1})
		if len(ended) != 1 || ended[0].Model != c.want {
			t.Errorf("%s: %d, %+v, want the model %q", c.body, w.Code, ended, c.want)
		}
	}
}
