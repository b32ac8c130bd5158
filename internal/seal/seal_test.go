package seal

import (
	"encoding/json"
	"errors"
	"testing"
)

type object struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

func TestX13_SealedObjects(t *testing.T) {
	t.Parallel()
	want := object{"envoy", 12}
	compact, _ := json.Marshal(want)
	indented, _ := json.MarshalIndent(want, "", "  ")
	for _, text := range [][]byte{compact, indented, append(indented, '\n')} {
		if err := Check(text); err != nil {
			t.Errorf("an object without a checksum: %v", err)
		}
		sealed := Add(text)
		var got object
		if err := json.Unmarshal(sealed, &got); err != nil || got != want {
			t.Errorf("%s decodes to %+v, %v", sealed, got, err)
		}
		if err := Check(append(sealed, '\n')); err != nil {
			t.Errorf("%s: %v", sealed, err)
		}
	}
}

// Whatever byte is damaged and wherever the object is cut, the reader gets the right content or an
// error.
func TestX13_EveryDamagedByteOfASealedObjectIsNoticed(t *testing.T) {
	t.Parallel()
	want := object{"envoy", 12}
	text, _ := json.Marshal(want)
	sealed := Add(text)
	check := func(damaged []byte) {
		t.Helper()
		var got object
		if err := errors.Join(Check(damaged), json.Unmarshal(damaged, &got)); err == nil && got != want {
			t.Errorf("%s is taken for %+v", damaged, got)
		}
	}
	for i := range sealed {
		check(sealed[:i])
		for mask := 1; mask < 256; mask++ {
			damaged := append([]byte{}, sealed...)
			damaged[i] ^= byte(mask)
			check(damaged)
		}
	}
}
