package trace

import "testing"

func TestSeries(t *testing.T) {
	t.Parallel()
	for _, length := range []int{1, 31, 32, 33, 64, 65, 1000, 100_000} {
		var s series
		for i := range length {
			s.add(i, began, began)
			s.add(i/2, began, began) // it does not grow
		}
		if n := len(s.kept); n > maxKept || n < min(length, maxKept/2) {
			t.Errorf("of %d, %d are kept", length, n)
		}
		for i, m := range s.kept {
			if m.n != i*s.stride {
				t.Fatalf("of %d, the %d. that is kept is %d, with a stride of %d", length, i, m.n, s.stride)
			}
		}
	}
}
