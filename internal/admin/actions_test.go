package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/loglines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// fakeActions records what it is told.
type fakeActions struct{ told []string }

func (f *fakeActions) DrainModel(model string, drained bool) { f.tell("model", model, drained) }
func (f *fakeActions) DrainReplica(id string, drained bool)  { f.tell("replica", id, drained) }
func (f *fakeActions) IsDrained(id string) bool              { return id == "gone-0" }
func (f *fakeActions) IsModelDrained(model string) bool      { return model == "gone/model" }

func (f *fakeActions) tell(what, name string, drained bool) {
	if !drained {
		what = "un" + what
	}
	f.told = append(f.told, what+" "+name)
}

func (f *fakeActions) SetScale(model string, to *Bounds) (Scale, *openai.Error) {
	if to == nil {
		return Scale{Bounds: Bounds{1, 1}, File: Bounds{1, 1}}, nil
	}
	return Scale{Bounds: *to, File: Bounds{1, 1}, Overridden: true}, nil
}

func (f *fakeActions) RestartReplica(_ context.Context, r engines.Replica) *openai.Error {
	if r.Launcher == engines.Upstream {
		return refusal(http.StatusConflict, "not ours")
	}
	f.told = append(f.told, "restart "+r.ID)
	return nil
}

func (f *fakeActions) RestartModel(model string) ([]string, *openai.Error) {
	return []string{model + "-0"}, nil
}

func (f *fakeActions) Log(_ context.Context, w io.Writer, r engines.Replica, q loglines.Query) error {
	if r.Launcher == engines.Upstream {
		return errors.New("not ours")
	}
	_, err := fmt.Fprintf(w, "%s %d %s %v\n", r.ID, q.Tail, q.Search, q.Follow)
	return err
}

func (f *fakeActions) CancelRequest(id string) *openai.Error {
	if id != "q-1" {
		return refusal(http.StatusConflict, "not held")
	}
	return nil
}

// Each action reaches the gateway with the right name, and a wrong call does not.
func TestO8_Actions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string // in the answer
		told               string // what the gateway is told
	}{
		{"POST", "/api/v1/models/default/drain", "", 200, `{"drained":true,"model":"chat"}`, "model chat"},
		{"POST", "/api/v1/models/org%2Fa%3Cb%3E%2Flimits/undrain", "{}", 200, `"drained":false`, "unmodel org/a<b>/limits"},
		{"POST", "/api/v1/models/none/drain", "", 404, "does not exist. `sluice models` lists the models.", ""},
		{"POST", "/api/v1/models/none/undrain", "", 404, "does not exist", ""},
		{"POST", "/api/v1/models/gone%2Fmodel/undrain", "", 200, `{"drained":false,"model":"gone/model"}`, "unmodel gone/model"},
		{"POST", "/api/v1/models/gone%2Fmodel/drain", "", 404, "does not exist", ""},
		{"POST", "/api/v1/models/chat/drain", `{"x":1}`, 400, "must be {} or empty", ""},
		{"POST", "/api/v1/models/chat/drain", `{}}`, 400, "more than one value", ""},
		{"POST", "/api/v1/models/chat/drain", `{} {}`, 400, "more than one value", ""},
		{"POST", "/api/v1/models/chat/explode", "", 404, "Unknown admin URL", ""},
		{"POST", "/api/v1/models/chat", "", 404, "Unknown admin URL", ""},
		{"GET", "/api/v1/models/chat/drain", "", 405, "only the methods POST", ""},
		{"POST", "/api/v1/replicas/chat-0/drain", "", 200, `{"drained":true,"replica":"chat-0"}`, "replica chat-0"},
		{"POST", "/api/v1/replicas/10.0.0.5%3A8000/undrain", "", 200, "", "unreplica 10.0.0.5:8000"},
		{"POST", "/api/v1/replicas/chat-7/drain", "", 404, "no replica `chat-7`. `sluice ps` lists the replicas.", ""},
		{"GET", "/api/v1/replicas/chat/log", "", 404, "no replica `chat`. It is a model: `sluice ps --model chat` lists its replicas.", ""},
		{"POST", "/api/v1/replicas/gone-0/undrain", "", 200, `{"drained":false,"replica":"gone-0"}`, "unreplica gone-0"},
		{"POST", "/api/v1/replicas/chat-7/undrain", "", 404, "no replica `chat-7`", ""},
		{"POST", "/api/v1/replicas/gone-0/drain", "", 404, "no replica `gone-0`", ""},
		{"POST", "/api/v1/replicas/chat-0/explode", "", 404, "Unknown", ""},
		{"PUT", "/api/v1/models/chat/scale", `{}`, 400, "Give min, max, or both", ""},
		{"PUT", "/api/v1/models/chat/scale", `{"min":null}`, 400, "Give min, max, or both", ""},
		{"PUT", "/api/v1/models/chat/scale", "", 400, "Give min, max, or both", ""},
		{"PUT", "/api/v1/models/chat/scale", `{"max":3}`, 200, `{"model":"chat","min":1,"max":3,"file":{"min":1,"max":1},"overridden":true}`, ""},
		{"PUT", "/api/v1/models/chat/scale", `{"min":3}`, 200, `"min":3,"max":3`, ""},
		{"PUT", "/api/v1/models/chat/scale", `{"min":"3"}`, 400, "The body must be", ""},
		{"DELETE", "/api/v1/models/chat/scale", "", 200, `"overridden":false`, ""},
		{"PUT", "/api/v1/models/empty/scale", `{"min":3}`, 409, "not launched", ""},
		{"DELETE", "/api/v1/models/empty/scale", "", 409, "not launched", ""},
		{"POST", "/api/v1/replicas/chat-0/restart", "", 202, `{"replica":"chat-0","restarts":true}`, "restart chat-0"},
		{"POST", "/api/v1/replicas/10.0.0.5%3A8000/restart", "", 409, "not ours", ""},
		{"POST", "/api/v1/models/chat/restart", "", 202, `"restarts":["chat-0"]`, ""},
		{"GET", "/api/v1/replicas/chat-0/log", "", 200, "chat-0 200  false\n", ""},
		{"GET", "/api/v1/replicas/chat-0/log?tail=0&search=a%20b&follow=true", "", 200, "chat-0 0 a b true\n", ""},
		{"HEAD", "/api/v1/replicas/chat-0/log?follow=true", "", 200, "chat-0 200  false\n", ""}, // a log that is followed would not end
		{"GET", "/api/v1/replicas/chat-0/log?tail=x", "", 400, "tail is", ""},
		{"GET", "/api/v1/replicas/chat-0/log?follow=perhaps", "", 400, "follow is", ""},
		{"GET", "/api/v1/replicas/10.0.0.5%3A8000/log", "", 409, "There is no log to show: not ours.", ""},
		{"POST", "/api/v1/requests/q-1/cancel", "", 202, `{"cancelled":true,"request_id":"q-1"}`, ""},
		{"POST", "/api/v1/requests/q-2/cancel", "", 409, "not held", ""},
		{"POST", "/api/v1/requests/q-1/repeat", "", 404, "Unknown", ""},
	} {
		c, actions := newConfig(), &fakeActions{}
		load := c.ModelLoad
		c.ModelLoad = func(model string) ModelLoad {
			l := load(model)
			if model == "chat" {
				l.Scale = &Scale{Bounds: Bounds{1, 1}, File: Bounds{1, 1}}
			}
			return l
		}
		c.Actions = actions
		w := ask(New(c), test.method, "http://localhost:9090"+test.path, test.body)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) || strings.Join(actions.told, "; ") != test.told {
			t.Errorf("%s %s %s: %d %s, told %q", test.method, test.path, test.body, w.Code, w.Body, actions.told)
		}
	}
}
