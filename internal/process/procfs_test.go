package process

import (
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 113189 3133440 408"
	for text, want := range map[string]procStat{
		"7 (cat) R 1 5 6" + rest:            {pid: 7, state: 'R', group: 5, session: 6, start: 113189},
		"7 (a) b) Z (c)) S 1 5 6" + rest:    {pid: 7, state: 'S', group: 5, session: 6, start: 113189},
		"7 (line\nbreak) Z 1 5 6" + rest:    {pid: 7, state: 'Z', group: 5, session: 6, start: 113189},
		"":                                  {},
		"7 (cat":                            {},
		"7 (cat) R 1 5 6":                   {},
		"7 (cat) R 1 x 6" + rest:            {},
		") 7 (cat R 1 5 6" + rest:           {},
		"seven (cat) R 1 5 6" + rest:        {},
		"7 (cat) Running 1 5 6" + rest:      {},
		"7 (cat) R 1 5 6 0 0 0 0 0 0 0 0 0": {},
	} {
		got, ok := parseStat([]byte(text))
		if got != want || ok != (want != procStat{}) {
			t.Errorf("parseStat(%q) = %+v, %v, want %+v", text, got, ok, want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, ok := parseStat(data); !ok && s != (procStat{}) {
			t.Errorf("parseStat(%q) fails and says %+v", data, s)
		}
	})
}
