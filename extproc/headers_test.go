package extproc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/headers"
)

func TestX8_TooManyHeadersAreRefusedAtOnce(t *testing.T) {
	s, _ := newServer(t, nil)
	s.MaxHeaders = headers.Limits{Count: 100, Bytes: 60 << 10}
	many := make([]string, 110)
	for i := range many {
		many[i] = fmt.Sprintf("x-many-%d: x", i)
	}
	for _, test := range []struct {
		name string
		add  []string
		want int
	}{
		{"many", many, 431},
		{"large", []string{"x-large: " + strings.Repeat("x", 60<<10)}, 431},
		{"few", many[:90], 0},
	} {
		e := open(t, s)
		answer := e.headers(append([]string{key}, test.add...)...)
		if got := int(answer.GetImmediateResponse().GetStatus().GetCode()); got != test.want {
			t.Errorf("%s: status %d, want %d", test.name, got, test.want)
		}
	}
}
