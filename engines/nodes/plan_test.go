package nodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// planned is one case: what a plan is made of, and the plan.
type planned struct {
	models  []local.Model
	members []member
	shown   string
	seats   string         // of the plan before
	busy    map[string]int // requests in flight

	want    string
	missing string
}

func (c planned) check(t *testing.T, name string) {
	t.Helper()
	w := worldOf(c.models, c.members...)
	w.shown = shownOf(w, c.shown)
	w.inFlight = func(id string) int { return c.busy[id] }
	before := memory{seats: seatsOf(c.seats)}
	p := w.plan(before)
	if got := text(p.seats); got != c.want || without(p.vacancies) != c.missing {
		t.Errorf("%s: %s\n  want %s\n  missing %s\n  want    %s", name, got, c.want, without(p.vacancies), c.missing)
	}
	again := w.plan(p.memory)
	if text(again.seats) != text(p.seats) || len(again.acts) > 0 {
		t.Errorf("%s: a second plan of the same moves: %+v", name, again.acts)
	}
}

func TestPlanGivesHosts(t *testing.T) {
	t.Parallel()
	a, b, none := with("a", 2), with("b", 2), with(here, 0)
	pack := func(m *local.Model) { m.Placement = placement.Pack }
	for name, c := range map[string]planned{
		"nothing wanted":        {models: []local.Model{model("chat", 0, 1)}, members: []member{a}},
		"spread":                {models: []local.Model{model("chat", 3, 1)}, members: []member{a, b}, want: "chat-0@a chat-1@b chat-2@a"},
		"pack":                  {models: []local.Model{changed(model("chat", 3, 1), pack)}, members: []member{a, b}, want: "chat-0@a chat-1@a chat-2@b"},
		"no resources: spread":  {models: []local.Model{model("chat", 3, 0)}, members: []member{none, a}, want: "chat-0@here chat-1@a chat-2@here"},
		"no resources: pack":    {models: []local.Model{changed(model("chat", 3, 0), pack)}, members: []member{none, a}, want: "chat-0@here chat-1@here chat-2@here"},
		"where it fits":         {models: []local.Model{model("chat", 1, 2)}, members: []member{none, a}, want: "chat-0@a"},
		"what does not fit":     {models: []local.Model{model("chat", 3, 2)}, members: []member{a}, want: "chat-0@a", missing: "chat-1: needs 2 GPUs, 0 of 2 are free: GPU 0 has chat-0, GPU 1 has chat-0; chat-2: needs 2 GPUs, 0 of 2 are free: GPU 0 has chat-0, GPU 1 has chat-0"},
		"it holds up nobody":    {models: []local.Model{model("large", 1, 8), model("chat", 1, 1)}, members: []member{a}, want: "chat-0@a", missing: "large-0: needs 8 GPUs, 2 of 2 are free"},
		"in the order of files": {models: []local.Model{model("y", 2, 1), model("x", 1, 1)}, members: []member{a}, want: "y-0@a y-1@a", missing: "x-0: needs 1 GPU, 0 of 2 are free: GPU 0 has y-0, GPU 1 has y-1"},
		"no host at all":        {models: []local.Model{model("chat", 1, 1)}, missing: "chat-0: there is no host"},
		"lost hosts":            {models: []local.Model{model("chat", 2, 1)}, members: []member{lost(a), with("b", 1)}, want: "chat-0@b", missing: "chat-1: a: does not answer; b: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-0"},
		"names with dashes":     {models: []local.Model{model("a", 1, 1), model("a-1", 1, 1)}, members: []member{a}, want: "a-0@a a-1-0@a"},
		"a name that is taken": {models: []local.Model{model("chat", 2, 1)}, want: "chat-0@b chat-1@b",
			members: []member{b, changedMember(a, func(m *member) { m.key, m.shut = "\x00a", true })}},
		"a host whose model leaves": {models: []local.Model{model("chat", 1, 1)}, members: []member{with("a", 1)}, shown: "chat-0@gone failed 0",
			want: "chat-1@a"},
	} {
		c.check(t, name)
	}
}

func changedMember(m member, f func(*member)) member {
	f(&m)
	return m
}

func TestPlanByLabel(t *testing.T) {
	t.Parallel()
	west := func(m *local.Model) { m.Cluster = "west" }
	a, b := with("a", 2, "east"), with("b", 1, "west", "big")
	chat := []local.Model{changed(model("chat", 2, 1), west)}
	free := []local.Model{changed(model("chat", 1, 0), west)}
	for name, c := range map[string]planned{
		"only there":                  {models: chat, members: []member{a, b}, want: "chat-0@b", missing: "chat-1: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-0"},
		"nobody has it":               {models: free, members: []member{a}, missing: `chat-0: no host has the label "west"`},
		"a host lost it":              {models: free, members: []member{a, b}, shown: "chat-0@a ready", seats: "chat-0@a", want: "chat-1@b"},
		"this host has not said":      {models: free, members: []member{unknown(with(here, 1)), a}, missing: "chat-0: waits until it is known what this host has"},
		"this host has it":            {models: free, members: []member{with(here, 0, "west"), a}, want: "chat-0@here"},
		"this host has other ones":    {models: free, members: []member{with(here, 0, "south"), a, b}, want: "chat-0@b"},
		"it was begun in another run": {models: free, members: []member{a, b}, shown: "chat-0@a ready", want: "chat-1@b"},
	} {
		c.check(t, name)
	}
}

func TestPlanBeforeThisHostIsKnown(t *testing.T) {
	t.Parallel()
	vague := unknown(with(here, 1))
	chat, free := []local.Model{model("chat", 1, 1)}, []local.Model{model("chat", 1, 0)}
	for name, c := range map[string]planned{
		"no resources: at once":    {models: free, members: []member{vague}, want: "chat-0@here"},
		"resources: not yet":       {models: chat, members: []member{vague}, missing: "chat-0: waits until it is known what this host has"},
		"resources: elsewhere":     {models: chat, members: []member{vague, with("a", 1)}, want: "chat-0@a"},
		"resources: not elsewhere": {models: chat, members: []member{vague, with("a", 0)}, missing: "chat-0: needs 1 GPU, this host has none; it is not known yet what this host has"},
		"of an earlier run":        {models: chat, members: []member{vague, with("a", 1)}, shown: "chat-0@here ready 0", want: "chat-0@here"},
		"of an earlier run, waits": {models: chat, members: []member{vague, with("a", 1)}, shown: "chat-0@here pending", want: "chat-0@here"},
	} {
		c.check(t, name)
	}
}

func TestPlanIsSticky(t *testing.T) {
	t.Parallel()
	a, b, c := with("a", 2), with("b", 2), with("c", 2)
	chat := []local.Model{model("chat", 2, 1)}
	for name, c := range map[string]planned{
		"it stays, however uneven":          {models: chat, members: []member{a, b}, shown: "chat-0@a ready 0; chat-1@a ready 1", seats: "chat-0@a chat-1@a", want: "chat-0@a chat-1@a"},
		"before the fleet shows it":         {models: chat, members: []member{a, b}, seats: "chat-4@a chat-7@a", want: "chat-4@a chat-7@a"},
		"what is assigned counts":           {models: []local.Model{model("x", 1, 1), model("chat", 1, 1)}, members: []member{with("a", 1), b}, seats: "chat-0@a", want: "chat-0@a x-0@b"},
		"of an earlier run":                 {models: chat, members: []member{a, b}, shown: "chat-3@b ready 0; chat-1@b starting 1", want: "chat-1@b chat-3@b"},
		"of an earlier run, on two hosts":   {models: chat, members: []member{a, b}, shown: "chat-0@b ready 0; chat-0@a ready 0", want: "chat-0@b chat-1@a"},
		"of an earlier run, leaving":        {models: chat, members: []member{a, b}, shown: "chat-0@a draining 0", want: "chat-1@b chat-2@a"},
		"its predecessor leaves":            {models: chat, members: []member{a, b}, shown: "chat-0@a draining 0; chat-1@b ready 0", seats: "chat-0@a chat-1@b", want: "chat-0@a chat-1@b"},
		"its host is lost":                  {models: chat, members: []member{lost(a), b, c}, shown: "chat-0@a failed 0; chat-1@b ready 0", seats: "chat-0@a chat-1@b", want: "chat-1@b chat-2@c"},
		"its host is gone":                  {models: chat, members: []member{b, c}, seats: "chat-0@a chat-1@b", want: "chat-1@b chat-2@c"},
		"its device is gone: it serves":     {models: chat, members: []member{with("a", 1), b}, shown: "chat-0@a ready 0; chat-1@a ready 1", seats: "chat-0@a chat-1@a", want: "chat-0@a chat-1@a"},
		"its device is gone: it waits":      {models: chat, members: []member{with("a", 1), b}, shown: "chat-0@a ready 0; chat-1@a pending", seats: "chat-0@a chat-1@a", want: "chat-0@a chat-2@b"},
		"it grew: the old one still serves": {models: []local.Model{model("chat", 1, 2)}, members: []member{with("a", 1), b}, shown: "chat-0@a ready 0", seats: "chat-0@a", want: "chat-0@a"},
		"it grew: the new one waits":        {models: []local.Model{model("chat", 1, 2)}, members: []member{with("a", 1), b}, shown: "chat-0@a pending", seats: "chat-0@a", want: "chat-1@b"},
		"a strange id":                      {models: chat, members: []member{a}, shown: "chat-01@a ready 0", want: "chat-0@a", missing: "chat-1: needs 1 GPU, 0 of 2 are free: GPU 0 has chat-01, GPU 1 has chat-0"},
	} {
		c.check(t, name)
	}
}

func TestPlanTakesTheLeast(t *testing.T) {
	t.Parallel()
	a := with("a", 4)
	two, one := []local.Model{model("chat", 2, 1)}, []local.Model{model("chat", 1, 1)}
	all := "chat-0@a ready 0; chat-1@a ready 1; chat-2@a ready 2"
	seats := "chat-0@a chat-1@a chat-2@a"
	for name, c := range map[string]planned{
		"first who has no host":      {models: one, members: []member{with("a", 1)}, shown: "chat-0@a starting 0", seats: "chat-0@a", want: "chat-0@a"},
		"of equals the highest":      {models: two, members: []member{a}, shown: all, seats: seats, want: "chat-0@a chat-1@a"},
		"who has the least to do":    {models: two, members: []member{a}, shown: all, seats: seats, busy: map[string]int{"chat-0": 2, "chat-1": 1, "chat-2": 3}, want: "chat-0@a chat-2@a"},
		"before that who starts":     {models: two, members: []member{a}, shown: "chat-0@a starting 0; chat-1@a ready 1; chat-2@a ready 2", seats: seats, want: "chat-1@a chat-2@a"},
		"before that who is not yet": {models: two, members: []member{a}, shown: "chat-0@a starting 0; chat-2@a starting 2", seats: seats, want: "chat-0@a chat-2@a"},
		"before that who has failed": {models: two, members: []member{a}, shown: "chat-0@a failed 0; chat-1@a pending; chat-2@a starting 2", seats: seats, want: "chat-1@a chat-2@a"},
		"all":                        {models: []local.Model{model("chat", 0, 1)}, members: []member{a}, shown: all, seats: seats},
		"fewer than none":            {models: []local.Model{model("chat", -1, 1)}, members: []member{a}, shown: all, seats: seats},
		"a model that is gone":       {models: []local.Model{model("x", 1, 1)}, members: []member{a}, seats: seats, want: "x-0@a"},
		"who came back from a loss":  {models: one, members: []member{a, with("b", 1)}, shown: "chat-0@a starting 0; chat-7@b ready 0", seats: "chat-0@a", want: "chat-7@b"},
	} {
		c.check(t, name)
	}
}

// follow makes plans one after another; each step changes the world first.
func follow(t *testing.T, w *world, before memory, steps ...func() string) {
	t.Helper()
	for i, step := range steps {
		want := step()
		p := w.plan(before)
		if got := strings.TrimSpace(text(p.seats) + " " + without(p.vacancies)); got != want {
			t.Fatalf("step %d: %s; want %s", i, got, want)
		}
		before = p.memory
	}
}

func (w *world) want(model string, desired int) { w.editions[model].Desired = desired }

// What leaves and is wanted again is called back where it is; a number that may be in use is given to nobody else.
func TestPlanCallsBack(t *testing.T) {
	t.Parallel()
	w := worldOf([]local.Model{model("chat", 2, 1)}, with("a", 1), with("b", 1), with("c", 1))
	show := func(text string) { w.shown = shownOf(w, text) }
	follow(t, w, memory{},
		func() string { return "chat-0@a chat-1@b" },
		func() string { show("chat-0@a ready 0; chat-1@b ready 0"); w.want("chat", 1); return "chat-0@a" },
		func() string { return "chat-0@a" }, // the host has not heard of it yet: it is not taken for one of an earlier run
		func() string {
			show("chat-0@a ready 0; chat-1@b draining 0")
			w.want("chat", 3)
			return "chat-0@a chat-1@b chat-2@c"
		},
		func() string { show("chat-0@a ready 0; chat-1@b ready 0"); w.want("chat", 1); return "chat-0@a" },
		func() string { show("chat-0@a ready 0; chat-1@b draining 0; chat-2@c draining 0"); return "chat-0@a" },
		func() string { w.editions["chat"].spec++; w.want("chat", 2); return "chat-0@a chat-3: " + full }, // it was something else
		func() string { show("chat-0@a ready 0; chat-2@c draining 0"); return "chat-0@a chat-1@b" },
	)
}

const full = "a: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-0; b: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-1; " +
	"c: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-2"

// A seat that was taken before the fleet showed anything: the host may have begun it.
func TestPlanDoesNotGiveAwayWhatMayBeThere(t *testing.T) {
	t.Parallel()
	w := worldOf([]local.Model{model("chat", 1, 1), model("x", 0, 1)}, with("a", 1), with("b", 1))
	follow(t, w, memory{},
		func() string { return "chat-0@a" },
		func() string { w.members[0].Lost = true; return "chat-1@b" },
		func() string { w.want("chat", 0); return "" },
		func() string { w.members[0].Lost = false; w.want("chat", 1); return "chat-0@a" }, // where it may be
		func() string { w.members[0].Lost = true; return "chat-1@b" },
		func() string {
			w.members[1].Lost = true
			w.now = w.now.Add(unseenFor / 2)
			return "chat-2: a: does not answer; b: does not answer"
		},
		func() string { w.now = w.now.Add(unseenFor); return "chat-0: a: does not answer; b: does not answer" },
	)
}

// Two replicas that the fleet does not show yet are given room in the order in which they got their seats.
func TestPlanKeepsTheOrderOfSeats(t *testing.T) {
	t.Parallel()
	w := worldOf([]local.Model{model("a", 1, 0.6), model("b", 1, 1)}, with("h", 2))
	w.members[0].GPUs = w.members[0].GPUs[:1]
	p := w.plan(memory{seats: seatsOf("b-0@h a-0@h")})
	if got := text(p.seats); got != "b-0@h" {
		t.Errorf("%s", got)
	}
	p = w.plan(memory{seats: seatsOf("a-0@h b-0@h")})
	if got := text(p.seats); got != "a-0@h" {
		t.Errorf("%s", got)
	}
}

// A host may have less room than the fleet shows: what waits there too long goes elsewhere, unless there is no room anywhere.
func TestPlanRelieves(t *testing.T) {
	t.Parallel()
	w := worldOf([]local.Model{model("chat", 1, 1)}, with("a", 2), with("b", 1))
	w.shown = shownOf(w, "chat-0@a pending")
	wait := func(d time.Duration) { w.now = w.now.Add(d) }
	follow(t, w, memory{seats: seatsOf("chat-0@a")},
		func() string { return "chat-0@a" },
		func() string { wait(refusedFor - 1); return "chat-0@a" },
		func() string { wait(1); w.members[1].Lost = true; return "chat-0@a" },
		func() string { w.members[1].Lost = false; return "chat-1@b" },
		func() string { wait(time.Minute); w.shown = shownOf(w, "chat-1@b pending"); return "chat-1@b" },
		func() string { w.shown = shownOf(w, "chat-1@b starting 0"); wait(time.Minute); return "chat-1@b" },
		func() string { w.shown = shownOf(w, "chat-1@b pending"); return "chat-1@b" },
	)
}

// evictions is what a plan evicts.
func evictions(w *world, before memory, idle string) (*plan, string) {
	p := w.plan(before)
	if !p.wantsEviction() {
		return p, ""
	}
	return p, strings.Join(p.evict(strings.Fields(idle)), " ")
}

func TestPlanEvicts(t *testing.T) {
	t.Parallel()
	evict := func(m *local.Model) { m.EvictIdle = true }
	chat := changed(model("chat", 1, 1), evict)
	large := changed(model("large", 1, 2), evict)
	a, b := with("a", 2), with("b", 2)
	x, y := model("x", 1, 1), model("y", 1, 1)
	for name, c := range map[string]struct {
		planned
		idle string
		want string
	}{
		"there is room":           {planned{models: []local.Model{chat, x}, members: []member{a}, shown: "x-0@a ready 0"}, "x", ""},
		"the longest unused":      {planned{models: []local.Model{chat, x, y}, members: []member{a}, shown: "x-0@a ready 0; y-0@a ready 1"}, "y x", "y"},
		"nobody is idle":          {planned{models: []local.Model{chat, x, y}, members: []member{a}, shown: "x-0@a ready 0; y-0@a ready 1"}, "", ""},
		"it is in use again":      {planned{models: []local.Model{chat, x, y}, members: []member{a}, shown: "x-0@a ready 0; y-0@a ready 1", busy: map[string]int{"y-0": 1}}, "y", ""},
		"it may not evict":        {planned{models: []local.Model{model("chat", 1, 1), x, y}, members: []member{a}, shown: "x-0@a ready 0; y-0@a ready 1"}, "y x", ""},
		"two of two models":       {planned{models: []local.Model{large, x, y}, members: []member{a}, shown: "x-0@a ready 0; y-0@a ready 1"}, "y x", "y x"},
		"one is not enough":       {planned{models: []local.Model{large, x, y}, members: []member{a}, shown: "x-0@a ready 0; y-0@a ready 1"}, "y", ""},
		"two of one model":        {planned{models: []local.Model{large, model("x", 2, 1)}, members: []member{a}, shown: "x-0@a ready 0; x-1@a ready 1"}, "x x", "x x"},
		"one may lose only one":   {planned{models: []local.Model{large, model("x", 2, 1)}, members: []member{a}, shown: "x-0@a ready 0; x-1@a ready 1"}, "x", ""},
		"its own are no help":     {planned{models: []local.Model{changed(chat, func(m *local.Model) { m.Desired = 2 })}, members: []member{with("a", 1)}, shown: "chat-0@a ready 0"}, "chat", ""},
		"who waits itself":        {planned{models: []local.Model{chat, model("x", 2, 1)}, members: []member{with("a", 1)}, shown: "x-0@a ready 0"}, "x", ""},
		"there will be room":      {planned{models: []local.Model{chat, model("x", 1, 1), y}, members: []member{a}, shown: "x-0@a ready 0; y-1@a draining 1"}, "x", ""},
		"there will be for one":   {planned{models: []local.Model{changed(chat, func(m *local.Model) { m.Desired = 2 }), x, model("y", 0, 1)}, members: []member{a}, shown: "x-0@a ready 0; y-0@a draining 1"}, "x", "x"},
		"another comes first":     {planned{models: []local.Model{model("z", 1, 1), chat, x, model("y", 0, 1)}, members: []member{a}, shown: "x-0@a ready 0; y-0@a draining 1"}, "x", "x"},
		"only where it may run":   {planned{models: []local.Model{changed(chat, func(m *local.Model) { m.Cluster = "west" }), model("x", 2, 2)}, members: []member{a, with("b", 2, "west")}, shown: "x-0@a ready 0,1; x-1@b ready 0,1"}, "x x", "x"},
		"not a host that is lost": {planned{models: []local.Model{chat, model("x", 1, 2)}, members: []member{a, lost(b)}, shown: "x-0@a ready 0,1; y-0@b failed 0"}, "y", ""},
	} {
		w := worldOf(append(c.models, model("w", 0, 1)), c.members...)
		if w.editions["y"] == nil {
			c.shown, _, _ = strings.Cut(c.shown, "; y-")
		}
		w.shown = shownOf(w, c.shown)
		w.inFlight = func(id string) int { return c.busy[id] }
		if p, got := evictions(w, memory{}, c.idle); got != c.want {
			t.Errorf("%s: %q, want %q; %s", name, got, c.want, without(p.vacancies))
		} else if _, again := evictions(w, p.memory, c.idle); again != "" {
			t.Errorf("%s: then %s", name, again)
		}
	}
}

// An eviction from its beginning to its end: nobody else is asked while room is being made, nor for 30 s when it is not.
func TestPlanWaitsForRoom(t *testing.T) {
	t.Parallel()
	chat := changed(model("chat", 1, 1), func(m *local.Model) { m.EvictIdle = true })
	w := worldOf([]local.Model{chat, model("x", 2, 1), model("y", 1, 1)}, with("a", 3))
	w.shown = shownOf(w, "x-0@a ready 0; x-1@a ready 1; y-0@a ready 2")
	w.inFlight = func(id string) int { return map[string]int{"x-0": 0, "x-1": 0}[id] }
	p, got := evictions(w, memory{}, "x y")
	if got != "x" || len(p.marked) != 1 {
		t.Fatalf("%q, %v", got, p.marked)
	}
	marked := spotOf("x-1@a")
	w.now = w.now.Add(evictAgain - time.Second)
	if p, got = evictions(w, p.memory, "x y"); got != "" {
		t.Fatalf("it is too early for %s", got)
	}
	kept := p.memory
	w.now = w.now.Add(time.Second)
	if _, got = evictions(w, kept, "y x"); got != "y" {
		t.Fatalf("%q was evicted after 30 s, want y", got)
	}
	w.now = w.now.Add(-time.Second)

	// The scaler obeys. The marked one goes, though the other has failed; it may leave as long as it likes, and is not called back.
	w.want("x", 1)
	w.shown = shownOf(w, "x-0@a failed 0; x-1@a ready 1; y-0@a ready 2")
	p, _ = evictions(w, kept, "y")
	if got := text(p.seats); got != "x-0@a y-0@a" {
		t.Fatal(got)
	}
	w.shown = shownOf(w, "x-0@a ready 0; x-1@a draining 1; y-0@a ready 2")
	w.now = w.now.Add(time.Hour)
	w.want("x", 2)
	if p, got = evictions(w, p.memory, "y"); got != "" || text(p.seats) != "x-0@a y-0@a" || p.marked[marked].IsZero() {
		t.Fatalf("%q, %s", got, text(p.seats))
	}
	w.shown = shownOf(w, "x-0@a ready 0; y-0@a ready 2")
	p, got = evictions(w, p.memory, "y")
	if got != "" || text(p.seats) != "chat-0@a x-0@a y-0@a" || len(p.marked)+len(p.released) != 0 {
		t.Fatalf("%q, %s, %v %v", got, text(p.seats), p.marked, p.released)
	}
}

// One that is in use again when it was to make room is treated like all others.
func TestPlanSparesWhoIsInUseAgain(t *testing.T) {
	t.Parallel()
	w := worldOf([]local.Model{model("x", 1, 1)}, with("a", 2))
	w.shown = shownOf(w, "x-0@a ready 0; x-1@a ready 1")
	for busy, want := range map[int]string{0: "x-1@a", 1: "x-0@a"} {
		w.inFlight = func(id string) int { return map[string]int{"x-0": busy, "x-1": 0}[id] }
		p := w.plan(memory{marked: marks(w, "x-0@a")})
		if got := text(p.seats); got != want {
			t.Errorf("with %d requests: %s, want %s", busy, got, want)
		}
	}
}

func marks(w *world, text string) map[spot]time.Time {
	all := map[spot]time.Time{}
	for field := range strings.FieldsSeq(text) {
		all[spotOf(field)] = w.now
	}
	return all
}

func TestIndexOf(t *testing.T) {
	t.Parallel()
	got := []int{}
	for _, id := range []string{"chat-0", "chat-12", "chat-012", "chat--1", "chat-+1", "chat", "other-1", "chat-x", "chat-1-0"} {
		got = append(got, indexOf("chat", id))
	}
	if want := []int{0, 12, -1, -1, -1, -1, -1, -1, -1}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
