package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// planned is a test case: what a plan is computed from, and what it should be.
type planned struct {
	models      []local.Model
	members     []member
	shown       string
	assignments string         // of the plan before
	busy        map[string]int // requests in flight

	want    string
	missing string
}

func (c planned) check(t *testing.T, name string) {
	t.Helper()
	o := observationOf(c.models, c.members...)
	o.shown = shownOf(o, c.shown)
	o.inFlight = func(id string) int { return c.busy[id] }
	before := planState{assignments: assignmentsOf(c.assignments)}
	p := o.plan(before)
	if got := text(p.assignments); got != c.want || without(p.pending) != c.missing {
		t.Errorf("%s: %s\n  want %s\n  missing %s\n  want    %s", name, got, c.want, without(p.pending), c.missing)
	}
	again := o.plan(p.planState)
	if text(again.assignments) != text(p.assignments) || len(again.changes) > 0 {
		t.Errorf("%s: a second plan of the same observation changes: %+v", name, again.changes)
	}
}

func TestPlanAssignsNodes(t *testing.T) {
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
		"no node at all":        {models: []local.Model{model("chat", 1, 1)}, missing: "chat-0: there is no node"},
		"lost nodes":            {models: []local.Model{model("chat", 2, 1)}, members: []member{lost(a), with("b", 1)}, want: "chat-0@b", missing: "chat-1: a: does not answer; b: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-0"},
		"names with dashes":     {models: []local.Model{model("a", 1, 1), model("a-1", 1, 1)}, members: []member{a}, want: "a-0@a a-1-0@a"},
		"a name that is taken": {models: []local.Model{model("chat", 2, 1)}, want: "chat-0@b chat-1@b",
			members: []member{b, changedMember(a, func(m *member) { m.key, m.nameTaken = "\x00a", true })}},
		"a node whose model leaves": {models: []local.Model{model("chat", 1, 1)}, members: []member{with("a", 1)}, shown: "chat-0@gone failed 0",
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
		"nobody has it":               {models: free, members: []member{a}, missing: `chat-0: no node has the label "west"`},
		"a node lost it":              {models: free, members: []member{a, b}, shown: "chat-0@a ready", assignments: "chat-0@a", want: "chat-1@b"},
		"this node has not said":      {models: free, members: []member{unknown(with(here, 1)), a}, missing: "chat-0: waits until the resources of this node are known"},
		"this node has it":            {models: free, members: []member{with(here, 0, "west"), a}, want: "chat-0@here"},
		"this node has other ones":    {models: free, members: []member{with(here, 0, "south"), a, b}, want: "chat-0@b"},
		"it was begun in another run": {models: free, members: []member{a, b}, shown: "chat-0@a ready", want: "chat-1@b"},
	} {
		c.check(t, name)
	}
}

func TestPlanBeforeThisNodeIsKnown(t *testing.T) {
	t.Parallel()
	localUnknown := unknown(with(here, 1))
	chat, free := []local.Model{model("chat", 1, 1)}, []local.Model{model("chat", 1, 0)}
	for name, c := range map[string]planned{
		"no resources: at once":    {models: free, members: []member{localUnknown}, want: "chat-0@here"},
		"resources: not yet":       {models: chat, members: []member{localUnknown}, missing: "chat-0: waits until the resources of this node are known"},
		"resources: elsewhere":     {models: chat, members: []member{localUnknown, with("a", 1)}, want: "chat-0@a"},
		"resources: not elsewhere": {models: chat, members: []member{localUnknown, with("a", 0)}, missing: "chat-0: needs 1 GPU, this node has none; the resources of this node are not known yet"},
		"of an earlier run":        {models: chat, members: []member{localUnknown, with("a", 1)}, shown: "chat-0@here ready 0", want: "chat-0@here"},
		"of an earlier run, waits": {models: chat, members: []member{localUnknown, with("a", 1)}, shown: "chat-0@here pending", want: "chat-0@here"},
	} {
		c.check(t, name)
	}
}

func TestPlanIsSticky(t *testing.T) {
	t.Parallel()
	a, b, c := with("a", 2), with("b", 2), with("c", 2)
	chat := []local.Model{model("chat", 2, 1)}
	for name, c := range map[string]planned{
		"it stays, however uneven":          {models: chat, members: []member{a, b}, shown: "chat-0@a ready 0; chat-1@a ready 1", assignments: "chat-0@a chat-1@a", want: "chat-0@a chat-1@a"},
		"before the fleet shows it":         {models: chat, members: []member{a, b}, assignments: "chat-4@a chat-7@a", want: "chat-4@a chat-7@a"},
		"what is assigned counts":           {models: []local.Model{model("x", 1, 1), model("chat", 1, 1)}, members: []member{with("a", 1), b}, assignments: "chat-0@a", want: "chat-0@a x-0@b"},
		"of an earlier run":                 {models: chat, members: []member{a, b}, shown: "chat-3@b ready 0; chat-1@b starting 1", want: "chat-1@b chat-3@b"},
		"of an earlier run, on two nodes":   {models: chat, members: []member{a, b}, shown: "chat-0@b ready 0; chat-0@a ready 0", want: "chat-0@b chat-1@a"},
		"of an earlier run, leaving":        {models: chat, members: []member{a, b}, shown: "chat-0@a draining 0", want: "chat-1@b chat-2@a"},
		"its predecessor leaves":            {models: chat, members: []member{a, b}, shown: "chat-0@a draining 0; chat-1@b ready 0", assignments: "chat-0@a chat-1@b", want: "chat-0@a chat-1@b"},
		"its node is lost":                  {models: chat, members: []member{lost(a), b, c}, shown: "chat-0@a failed 0; chat-1@b ready 0", assignments: "chat-0@a chat-1@b", want: "chat-1@b chat-2@c"},
		"its node is gone":                  {models: chat, members: []member{b, c}, assignments: "chat-0@a chat-1@b", want: "chat-1@b chat-2@c"},
		"its device is gone: it serves":     {models: chat, members: []member{with("a", 1), b}, shown: "chat-0@a ready 0; chat-1@a ready 1", assignments: "chat-0@a chat-1@a", want: "chat-0@a chat-1@a"},
		"its device is gone: it waits":      {models: chat, members: []member{with("a", 1), b}, shown: "chat-0@a ready 0; chat-1@a pending", assignments: "chat-0@a chat-1@a", want: "chat-0@a chat-2@b"},
		"it grew: the old one still serves": {models: []local.Model{model("chat", 1, 2)}, members: []member{with("a", 1), b}, shown: "chat-0@a ready 0", assignments: "chat-0@a", want: "chat-0@a"},
		"it grew: the new one waits":        {models: []local.Model{model("chat", 1, 2)}, members: []member{with("a", 1), b}, shown: "chat-0@a pending", assignments: "chat-0@a", want: "chat-1@b"},
		"a strange id":                      {models: chat, members: []member{a}, shown: "chat-01@a ready 0", want: "chat-0@a", missing: "chat-1: needs 1 GPU, 0 of 2 are free: GPU 0 has chat-01, GPU 1 has chat-0"},
	} {
		c.check(t, name)
	}
}

func TestPlanStopsTheLeastUseful(t *testing.T) {
	t.Parallel()
	a := with("a", 4)
	two, one := []local.Model{model("chat", 2, 1)}, []local.Model{model("chat", 1, 1)}
	all := "chat-0@a ready 0; chat-1@a ready 1; chat-2@a ready 2"
	assignments := "chat-0@a chat-1@a chat-2@a"
	for name, c := range map[string]planned{
		"first who has no node":      {models: one, members: []member{with("a", 1)}, shown: "chat-0@a starting 0", assignments: "chat-0@a", want: "chat-0@a"},
		"of equals the highest":      {models: two, members: []member{a}, shown: all, assignments: assignments, want: "chat-0@a chat-1@a"},
		"who has the least to do":    {models: two, members: []member{a}, shown: all, assignments: assignments, busy: map[string]int{"chat-0": 2, "chat-1": 1, "chat-2": 3}, want: "chat-0@a chat-2@a"},
		"before that who starts":     {models: two, members: []member{a}, shown: "chat-0@a starting 0; chat-1@a ready 1; chat-2@a ready 2", assignments: assignments, want: "chat-1@a chat-2@a"},
		"before that who is not yet": {models: two, members: []member{a}, shown: "chat-0@a starting 0; chat-2@a starting 2", assignments: assignments, want: "chat-0@a chat-2@a"},
		"before that who has failed": {models: two, members: []member{a}, shown: "chat-0@a failed 0; chat-1@a pending; chat-2@a starting 2", assignments: assignments, want: "chat-1@a chat-2@a"},
		"all":                        {models: []local.Model{model("chat", 0, 1)}, members: []member{a}, shown: all, assignments: assignments},
		"fewer than none":            {models: []local.Model{model("chat", -1, 1)}, members: []member{a}, shown: all, assignments: assignments},
		"a model that is gone":       {models: []local.Model{model("x", 1, 1)}, members: []member{a}, assignments: assignments, want: "x-0@a"},
		"who came back from a loss":  {models: one, members: []member{a, with("b", 1)}, shown: "chat-0@a starting 0; chat-7@b ready 0", assignments: "chat-0@a", want: "chat-7@b"},
	} {
		c.check(t, name)
	}
}

// follow computes plans one after another. Each step changes the observation first.
func follow(t *testing.T, o *observation, before planState, steps ...func() string) {
	t.Helper()
	for i, step := range steps {
		want := step()
		p := o.plan(before)
		if got := strings.TrimSpace(text(p.assignments) + " " + without(p.pending)); got != want {
			t.Fatalf("step %d: %s; want %s", i, got, want)
		}
		before = p.planState
	}
}

func (o *observation) want(model string, desired int) { o.revisions[model].Desired = desired }

// A released replica that is wanted again is assigned to its node again. A number that may be in
// use is not given to another replica.
func TestPlanRebinds(t *testing.T) {
	t.Parallel()
	o := observationOf([]local.Model{model("chat", 2, 1)}, with("a", 1), with("b", 1), with("c", 1))
	show := func(text string) { o.shown = shownOf(o, text) }
	follow(t, o, planState{},
		func() string { return "chat-0@a chat-1@b" },
		func() string { show("chat-0@a ready 0; chat-1@b ready 0"); o.want("chat", 1); return "chat-0@a" },
		func() string { return "chat-0@a" }, // the node has not heard of it yet: it is not taken for one of an earlier run
		func() string {
			show("chat-0@a ready 0; chat-1@b draining 0")
			o.want("chat", 3)
			return "chat-0@a chat-1@b chat-2@c"
		},
		func() string { show("chat-0@a ready 0; chat-1@b ready 0"); o.want("chat", 1); return "chat-0@a" },
		func() string { show("chat-0@a ready 0; chat-1@b draining 0; chat-2@c draining 0"); return "chat-0@a" },
		func() string { o.revisions["chat"].spec++; o.want("chat", 2); return "chat-0@a chat-3: " + full }, // it was something else
		func() string { show("chat-0@a ready 0; chat-2@c draining 0"); return "chat-0@a chat-1@b" },
	)
}

const full = "a: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-0; b: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-1; " +
	"c: needs 1 GPU, 0 of 1 are free: GPU 0 has chat-2"

// An assignment ends before the fleet has shown its replica. The node may have started the replica.
func TestPlanDoesNotGiveAwayWhatMayBeThere(t *testing.T) {
	t.Parallel()
	o := observationOf([]local.Model{model("chat", 1, 1), model("x", 0, 1)}, with("a", 1), with("b", 1))
	follow(t, o, planState{},
		func() string { return "chat-0@a" },
		func() string { o.members[0].Lost = true; return "chat-1@b" },
		func() string { o.want("chat", 0); return "" },
		func() string { o.members[0].Lost = false; o.want("chat", 1); return "chat-0@a" }, // where it may be
		func() string { o.members[0].Lost = true; return "chat-1@b" },
		func() string {
			o.members[1].Lost = true
			o.now = o.now.Add(unseenTimeout / 2)
			return "chat-2: a: does not answer; b: does not answer"
		},
		func() string {
			o.now = o.now.Add(unseenTimeout)
			return "chat-0: a: does not answer; b: does not answer"
		},
	)
}

// Two replicas that the fleet does not show yet get room in the order of their assignments.
func TestPlanKeepsTheOrderOfAssignments(t *testing.T) {
	t.Parallel()
	o := observationOf([]local.Model{model("a", 1, 0.6), model("b", 1, 1)}, with("h", 2))
	o.members[0].GPUs = o.members[0].GPUs[:1]
	p := o.plan(planState{assignments: assignmentsOf("b-0@h a-0@h")})
	if got := text(p.assignments); got != "b-0@h" {
		t.Errorf("%s", got)
	}
	p = o.plan(planState{assignments: assignmentsOf("a-0@h b-0@h")})
	if got := text(p.assignments); got != "a-0@h" {
		t.Errorf("%s", got)
	}
}

// A node may have less room than the fleet shows. A replica that waits there too long is assigned
// to another node that has room. One that its node is about to place may wait longer.
func TestPlanUnbindsRefused(t *testing.T) {
	t.Parallel()
	o := observationOf([]local.Model{model("chat", 1, 1)}, with("a", 2), with("b", 1))
	o.shown = shownOf(o, "chat-0@a pending placing")
	wait := func(d time.Duration) { o.now = o.now.Add(d) }
	follow(t, o, planState{assignments: assignmentsOf("chat-0@a")},
		func() string { return "chat-0@a" },
		func() string { wait(time.Minute); return "chat-0@a" },
		func() string { o.shown = shownOf(o, "chat-0@a pending"); return "chat-0@a" },
		func() string { wait(refusedTimeout - 1); return "chat-0@a" },
		func() string { wait(1); o.members[1].Lost = true; return "chat-0@a" },
		func() string { o.members[1].Lost = false; return "chat-1@b" },
		func() string { wait(time.Minute); o.shown = shownOf(o, "chat-1@b pending"); return "chat-1@b" },
		func() string { o.shown = shownOf(o, "chat-1@b starting 0"); wait(time.Minute); return "chat-1@b" },
		func() string { o.shown = shownOf(o, "chat-1@b pending"); return "chat-1@b" },
	)
}

// evictions computes a plan and returns it with the models that it evicts.
func evictions(o *observation, before planState, idle string) (*plan, string) {
	p := o.plan(before)
	if !p.needsEviction() {
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
		"not a node that is lost": {planned{models: []local.Model{chat, model("x", 1, 2)}, members: []member{a, lost(b)}, shown: "x-0@a ready 0,1; y-0@b failed 0"}, "y", ""},
	} {
		o := observationOf(append(c.models, model("w", 0, 1)), c.members...)
		if o.revisions["y"] == nil {
			c.shown, _, _ = strings.Cut(c.shown, "; y-")
		}
		o.shown = shownOf(o, c.shown)
		o.inFlight = func(id string) int { return c.busy[id] }
		if p, got := evictions(o, planState{}, c.idle); got != c.want {
			t.Errorf("%s: %q, want %q; %s", name, got, c.want, without(p.pending))
		} else if _, again := evictions(o, p.planState, c.idle); again != "" {
			t.Errorf("%s: then %s", name, again)
		}
	}
}

// While a chosen replica drains, no other one is evicted for the same pending replica. If the
// chosen replica does not drain, no other one is chosen for 30 s.
func TestPlanWaitsForRoom(t *testing.T) {
	t.Parallel()
	chat := changed(model("chat", 1, 1), func(m *local.Model) { m.EvictIdle = true })
	o := observationOf([]local.Model{chat, model("x", 2, 1), model("y", 1, 1)}, with("a", 3))
	o.shown = shownOf(o, "x-0@a ready 0; x-1@a ready 1; y-0@a ready 2")
	o.inFlight = func(id string) int { return map[string]int{"x-0": 0, "x-1": 0}[id] }
	p, got := evictions(o, planState{}, "x y")
	if got != "x" || len(p.evicting) != 1 {
		t.Fatalf("%q, %v", got, p.evicting)
	}
	marked := locationOf("x-1@a")
	o.now = o.now.Add(evictionTimeout - time.Second)
	if p, got = evictions(o, p.planState, "x y"); got != "" {
		t.Fatalf("it is too early for %s", got)
	}
	kept := p.planState
	o.now = o.now.Add(time.Second)
	if _, got = evictions(o, kept, "y x"); got != "y" {
		t.Fatalf("%q was evicted after 30 s, want y", got)
	}
	o.now = o.now.Add(-time.Second)

	// The scaler scales the model down. The chosen replica stops, although another one has failed.
	// It may drain for any time, and is not assigned again.
	o.want("x", 1)
	o.shown = shownOf(o, "x-0@a failed 0; x-1@a ready 1; y-0@a ready 2")
	p, _ = evictions(o, kept, "y")
	if got := text(p.assignments); got != "x-0@a y-0@a" {
		t.Fatal(got)
	}
	o.shown = shownOf(o, "x-0@a ready 0; x-1@a draining 1; y-0@a ready 2")
	o.now = o.now.Add(time.Hour)
	o.want("x", 2)
	if p, got = evictions(o, p.planState, "y"); got != "" || text(p.assignments) != "x-0@a y-0@a" || p.evicting[marked].IsZero() {
		t.Fatalf("%q, %s", got, text(p.assignments))
	}
	o.shown = shownOf(o, "x-0@a ready 0; y-0@a ready 2")
	p, got = evictions(o, p.planState, "y")
	if got != "" || text(p.assignments) != "chat-0@a x-0@a y-0@a" || len(p.evicting)+len(p.released) != 0 {
		t.Fatalf("%q, %s, %v %v", got, text(p.assignments), p.evicting, p.released)
	}
}

// A replica that was chosen for eviction and has requests again is treated like all others.
func TestPlanSparesWhoIsInUseAgain(t *testing.T) {
	t.Parallel()
	o := observationOf([]local.Model{model("x", 1, 1)}, with("a", 2))
	o.shown = shownOf(o, "x-0@a ready 0; x-1@a ready 1")
	for busy, want := range map[int]string{0: "x-1@a", 1: "x-0@a"} {
		o.inFlight = func(id string) int { return map[string]int{"x-0": busy, "x-1": 0}[id] }
		p := o.plan(planState{evicting: marks(o, "x-0@a")})
		if got := text(p.assignments); got != want {
			t.Errorf("with %d requests: %s, want %s", busy, got, want)
		}
	}
}

func marks(o *observation, text string) map[location]time.Time {
	all := map[location]time.Time{}
	for field := range strings.FieldsSeq(text) {
		all[locationOf(field)] = o.now
	}
	return all
}
