package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// keyMaker is a Keys that makes every key that is asked for.
type keyMaker struct {
	Keys
	asked *NewKey
}

func (k keyMaker) New(_ context.Context, asked NewKey) (Key, string, *openai.Error) {
	*k.asked = asked
	return Key{}, "sk-x", nil
}

// A key may be for a hundred models, whose names may be long.
func TestNewKeyForManyModels(t *testing.T) {
	t.Parallel()
	var asked, want NewKey
	c := newConfig()
	c.Keys = keyMaker{asked: &asked}
	for i := range 100 {
		want.Models = append(want.Models, fmt.Sprintf("organisation/%s-%02d", strings.Repeat("m", 200), i))
	}
	want.Tenant = "acme"
	body, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/api/v1/keys", strings.NewReader(string(body)))
	r.Host = "localhost:9090"
	r.Header.Set("Content-Type", "application/json")
	New(c).ServeHTTP(w, r)
	if w.Code != 201 || len(asked.Models) != 100 || asked.Models[99] != want.Models[99] {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
