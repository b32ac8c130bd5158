package openai_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestB10_Elements: a list is read as encoding/json reads it, but not further than its limit or its
// first fault.
func TestB10_Elements(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{`[1,2,3]`, `[]`, `null`, ` [ 1 ] `, `["x"]`, `{}`, `7`, `[1,"x",2]`} {
		var want []int
		var got openai.List[int]
		wantErr, err := json.Unmarshal([]byte(raw), &want), json.Unmarshal([]byte(raw), &got)
		if (wantErr == nil) != (err == nil) || wantErr == nil && !slices.Equal(want, got) {
			t.Errorf("%s: %v, %v, want %v, %v", raw, got, err, want, wantErr)
		}
	}
	long := "[" + strings.Repeat("0,", 2*openai.MaxElements) + "0]"
	var list openai.List[int]
	if err := json.Unmarshal([]byte(long), &list); !errors.Is(err, openai.ErrTooLong) || len(list) != openai.MaxElements {
		t.Errorf("%d elements, %v", len(list), err)
	}
	calls := 0
	err := openai.Elements([]byte(`[1,"x",2]`), func(_ int, decode func(any) error) error {
		calls++
		var n int
		return decode(&n)
	})
	if err == nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
