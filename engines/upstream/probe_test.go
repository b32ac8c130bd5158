package upstream

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// texts is a server that answers 200 with a text, or with the status that the text is, by path. It
// records the paths that it was asked for.
type texts struct {
	mu    sync.Mutex
	text  map[string]string
	asked map[string]bool
}

func startTexts(t *testing.T, text map[string]string) (s *texts, url string) {
	s = &texts{text: text, asked: map[string]bool{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func (s *texts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[r.URL.RequestURI()] = true
	text, ok := s.text[r.URL.Path]
	statuses := map[string]int{"302": 302, "401": 401, "500": 500, "501": 501, "503": 503}
	switch status := statuses[text]; {
	case !ok:
		http.NotFound(w, r)
	case status != 0:
		w.WriteHeader(status)
	default:
		io.WriteString(w, text)
	}
}

func (s *texts) set(path, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text[path] = text
}

// TestU3_ServersWithoutAList of models are alive if one of the usual probes says so.
func TestU3_ServersWithoutAList(t *testing.T) {
	for name, tt := range map[string]struct {
		text  map[string]string
		fault string // the beginning; "" means ready
	}{
		"/health":                  {map[string]string{"/health": ""}, ""},
		"/info":                    {map[string]string{"/info": "{}"}, ""},
		"/":                        {map[string]string{"/": "hello"}, ""},
		"a redirect":               {map[string]string{"/": "302"}, ""},
		"a list that is not there": {map[string]string{"/v1/models": "501", "/models": "501", "/health": ""}, ""},
		"loading":                  {map[string]string{"/health": "503", "/": "hello"}, "its /health answered 503"},
		"locked":                   {map[string]string{"/health": "401"}, "its /health answered 401: check the key"},
		"nothing":                  {nil, "it has no list of models, and answers 404 at /health, /info and /: name"},
		"a broken list":            {map[string]string{"/v1/models": "500", "/health": ""}, "its list of models answered 500"},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := startTexts(t, tt.text)
			l, fleet := newTestLauncher(t, Desired{Models: []Model{{Model: engines.Model{Name: "m"}, URLs: []string{url}, Names: map[string]string{url: "there"}}}})
			l.CheckOnce(t.Context())
			r := fleet.Snapshot().Models["m"].Replicas[0]
			if (r.State == engines.Ready) != (tt.fault == "") || !strings.HasPrefix(r.Reason, tt.fault) || len(l.Unlisted()) > 0 {
				t.Errorf("%s: %s; not listed: %v", r.State, r.Reason, l.Unlisted())
			}
		})
	}
}

// TestU3_ProbeOfTheConfiguration: the probe that the configuration names decides, whatever the list
// of models does. The models of the last list stay.
func TestU3_ProbeOfTheConfiguration(t *testing.T) {
	s, url := startTexts(t, map[string]string{"/api/v1/models": `{"data":[{"id":"chat"}]}`, "/api/live": "ok"})
	url += "/api"
	l, fleet := newTestLauncher(t, Desired{Discover: discover(url + "/v1"), Settings: map[string]Settings{url + "/v1": {HealthPath: "/live?deep=1"}}})
	id := replicaID(url)
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Ready}})
	for _, path := range []string{"/api/live?deep=1", "/api/v1/models"} {
		if !s.asked[path] {
			t.Errorf("%s was not asked: %v", path, s.asked)
		}
	}
	s.set("/api/v1/models", "500")
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Ready}})
	s.set("/api/live", "503")
	s.set("/api/v1/models", `{"data":[{"id":"chat"}]}`)
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {id: engines.Failed}})
	if reason := l.Faults()[url+"/v1"].Reason; reason != "its /live?deep=1 answered 503" {
		t.Errorf("the reason is %q", reason)
	}
}

// TestU3_ModelOfTEI: text-embeddings-inference tells its model at /info. A server that only serves
// models of the configuration is not asked.
func TestU3_ModelOfTEI(t *testing.T) {
	s, url := startTexts(t, map[string]string{"/health": "", "/info": `{"model_id":"BAAI/bge-m3","model_type":{"embedding":{"pooling":"cls"}}}`})
	l, fleet := newTestLauncher(t, Desired{Discover: discover(url)})
	expect := func(models map[string]states) {
		t.Helper()
		l.CheckOnce(t.Context())
		expectStates(t, fleet, models)
	}
	ready := states{replicaID(url): engines.Ready}
	expect(map[string]states{"BAAI/bge-m3": ready})
	s.set("/info", "500") // It stays alive, and keeps its model.
	expect(map[string]states{"BAAI/bge-m3": ready})
	s.set("/info", `{"model_id":"/data/m","served_model_name":"embed"}`)
	expect(map[string]states{"embed": ready})
	s.set("/info", `{"model_id":"/data/m"}`)
	expect(map[string]states{})
	if refused := l.RefusedNames(); len(refused) != 1 || !cmp.Equal(refused[0].Names, []string{`"/data/m"`}) {
		t.Errorf("refused: %+v", refused)
	}
	for _, text := range []string{`[]`, `<html>`, `{"name":"x"}`} {
		s.set("/info", text)
		expect(map[string]states{})
	}

	s, url = startTexts(t, map[string]string{"/health": "", "/info": `{"model_id":"other"}`})
	l, fleet = newTestLauncher(t, Desired{Models: []Model{{Model: engines.Model{Name: "mine"}, URLs: []string{url}}}})
	expect(map[string]states{"mine": {replicaID(url): engines.Ready}})
	if s.asked["/info"] {
		t.Errorf("asked: %v", maps.Clone(s.asked))
	}
}
