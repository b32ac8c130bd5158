package dispatch

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// BenchmarkPick is a whole dispatch and its end, by strategy, for chats of 1 KB and 64 KB. The chat
// is always the same one, or the chats differ and share their first 512 bytes.
func BenchmarkPick(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		for _, n := range []int{8, 1000} {
			for _, prompts := range []string{"same", "new"} {
				for _, strategy := range []Strategy{LeastConnections, CHWBL, Prefix} {
					b.Run(fmt.Sprintf("%d KB/%d replicas/%s/%s", size>>10, n, prompts, strategy), func(b *testing.B) {
						benchmarkPick(b, size, n, prompts == "new", strategy)
					})
				}
			}
		}
	}
}

func benchmarkPick(b *testing.B, size, replicas int, fresh bool, strategy Strategy) {
	s := newStage(Policy{Strategy: strategy, LoadFloor: 8, UserMessages: 2})
	list := make([]engines.Replica, replicas)
	for i := range list {
		list[i].ID = fmt.Sprint("replica-", i)
	}
	s.put("m", list...)
	body := []byte(`{"model":"m","messages":[{"role":"system","content":"` + strings.Repeat("Be terse. ", 20) + `"},{"role":"user","content":"` +
		strings.Repeat("some text ", (size-250)/10) + `"}]}`)
	caller := Caller{Tenant: &authz.Tenant{Name: "t", Models: []string{"*"}}}
	count, at := 0, 512
	once := func() {
		if count++; fresh {
			copy(body[at:], fmt.Sprintf("%8d", count))
		}
		scan, fault := openai.Scan(openai.Chat, "application/json", body)
		if fault != nil {
			b.Fatal(fault)
		}
		ticket, fault := s.Dispatch(context.Background(), NewRequest(caller, &scan, body))
		if fault != nil {
			b.Fatal(fault)
		}
		ticket.Release()
	}
	for range 2 * replicas {
		once()
	}
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}
