package messages

import (
	"runtime"
	"strings"
	"testing"
)

// Many system messages cost what their bytes cost: a client must not keep a processor busy for
// minutes with a small body.
func TestB10_ManySystemMessages(t *testing.T) {
	const n = 4000
	body := `{"max_tokens":9,"messages":[{"role":"user","content":"hi"}` + strings.Repeat(`,{"role":"system","content":"x"}`, n) + `]}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	chat, _, fault := ToChat([]byte(body))
	runtime.ReadMemStats(&after)
	if fault != nil || strings.Count(string(chat), "<system-reminder>") != n || strings.Count(string(chat), `"role"`) != 1 {
		t.Errorf("%.200s, %v", chat, fault)
	}
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 100*uint64(len(body)) {
		t.Errorf("a body of %d bytes took %d", len(body), bytes)
	}
}
