package failover

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/failover.md anew")

func TestR9_StatusesOfTheRule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set     Statuses
		moves   []int
		retryOn string
		codes   int
	}{
		{0, []int{429, 500, 502, 503, 504, 599}, "envoy-ratelimited,5xx,retriable-status-codes", 1},
		{AllStatuses, []int{429, 500, 502, 503, 504, 599}, "envoy-ratelimited,5xx,retriable-status-codes", 1},
		{OnTooMany, []int{429}, "envoy-ratelimited,retriable-status-codes", 1},
		{OnUnavailable, []int{503}, "retriable-status-codes", 1},
		{OnServerError, []int{500, 502, 504, 599}, "retriable-status-codes", 99},
		{OnServerError | OnUnavailable, []int{500, 502, 503, 504, 599}, "5xx", 0},
		{NoStatus, nil, "", 0},
	} {
		for _, status := range []int{200, 400, 404, 408, 422, 429, 499, 500, 502, 503, 504, 599, 600} {
			if got := c.set.Reason(status) != ""; got != slices.Contains(c.moves, status) {
				t.Errorf("%b: after %d another replica is tried: %v", c.set, status, got)
			}
		}
		retryOn, codes := c.set.Envoy()
		if n := len(strings.FieldsFunc(codes, func(r rune) bool { return r == ',' })); retryOn != c.retryOn || n != c.codes {
			t.Errorf("%b: Envoy retries on %q, %q", c.set, retryOn, codes)
		}
		for _, code := range strings.FieldsFunc(codes, func(r rune) bool { return r == ',' }) {
			if code == "503" && c.set&OnUnavailable == 0 {
				t.Errorf("%b: %s", c.set, codes)
			}
		}
	}
	for set, usual := range map[Statuses]bool{0: true, AllStatuses: true, EveryBit: true, NoStatus: false, OnTooMany: false, OnTooMany | OnServerError: false} {
		if set.Usual() != usual {
			t.Errorf("%b: Envoy's routes follow it by themselves: %v", set, !usual)
		}
	}
	if ReasonOf(429) != TooMany || ReasonOf(503) != ServerError || ReasonOf(404) != "" {
		t.Error("reasons of statuses")
	}
	want := []string{Connect, Reset, TooMany, ServerError, TTFTTimeout, Preempted}
	if got := Reasons(); !slices.Equal(got, want) || RetryOn() != "connect-failure,refused-stream,reset" {
		t.Errorf("%v, %q", got, RetryOn())
	}
}

// TestDocument: docs/failover.md has the table of the rules.
func TestDocument(t *testing.T) {
	t.Parallel()
	const path, mark, end = "../../docs/failover.md", "<!-- table -->\n", "<!-- end -->\n"
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(old), mark)
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s lacks %q or %q", path, mark, end)
	}
	want := before + mark + table() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != string(old) {
		t.Errorf("%s is not up to date: run go test ./internal/failover -run Document -update", path)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("| the replica | reason | native | managed, and engines with `protocol: grpc` | `fail_over_on` | the replica then |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- |\n")
	names := map[Statuses]string{OnTooMany: "`429`", OnUnavailable: "`503`", OnServerError: "`5xx`"}
	for _, r := range rules {
		native := "no"
		if r.Envoy != "" || r.Statuses != 0 {
			native = "yes"
		}
		b.WriteString("| " + strings.Join([]string{r.What, "`" + r.Reason + "`", native, r.Managed, names[r.Statuses], r.Then}, " | ") + " |\n")
	}
	return b.String()
}
