package extproc

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/request"
)

// namedHold is a hold that wants the id of its response.
type namedHold struct{ learned []string }

func (*namedHold) Moved(string)                              {}
func (*namedHold) FirstToken() bool                          { return true }
func (*namedHold) WantsResponseID() bool                     { return true }
func (h *namedHold) LearnResponse(id string)                 { h.learned = append(h.learned, id) }
func (*namedHold) Correct(request.Response) (c request.Cost) { return c }
func (*namedHold) Release()                                  {}

// The id of a native response is read from its beginning, which may come in several pieces.
func TestB2_ObserverLearnsTheResponse(t *testing.T) {
	for name, test := range map[string]struct {
		pieces []string
		want   string
	}{
		"whole":  {[]string{`{"id":"resp_1","object":"response"}`}, "resp_1"},
		"stream": {[]string{": ping\n\n", "event: response.created\nda", `ta: {"response":{"id":"re`, `sp_1","obj`}, "resp_1"},
		"large":  {[]string{strings.Repeat(" ", maxObserved)}, ""},
	} {
		s, _ := newServer(t)
		h := new(namedHold)
		record := s.Requests.Begin(request.Arrival{ID: "e-1"})
		record.SetNative(h, "m", "m-0", 0)
		e := observed(t, s)
		for i, piece := range test.pieces {
			id := ""
			if i == 0 {
				id = "e-1"
			}
			e.toSluice <- seen(id, piece)
		}
		if err := <-e.processed; err != nil { // it ends by itself
			t.Error(err)
		}
		record.Close(nil)
		if got := strings.Join(h.learned, " "); got != test.want {
			t.Errorf("%s: the ids are %q", name, got)
		}
	}
}
