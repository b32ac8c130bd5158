package decide

import "testing"

// TestB10_HeadersSentTwice: a second header of a kind is noticed also if one of them is empty.
func TestB10_HeadersSentTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		first, second string
	}{{"x-session-id", "", "s2"}, {"x-session-id", "s1", ""}, {"x-session-id", "", ""}, {"authorization", "", "Bearer x"}, {"idempotency-key", "a", "a"}} {
		var once, twice Head
		once.Add(c.name, []byte(c.first))
		twice.Add(c.name, []byte(c.first))
		twice.Add("accept", []byte(c.second))
		twice.Add(c.name, []byte(c.second))
		if once.repeated != "" || twice.repeated != c.name {
			t.Errorf("%s: %q and %q: %q, %q", c.name, c.first, c.second, once.repeated, twice.repeated)
		}
	}
}
