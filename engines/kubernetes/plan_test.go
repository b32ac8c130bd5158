package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pods parses a short notation: each word is a pod's name and flags. r means ready, n not ready, p
// not running, u unschedulable, d draining, f drained, l marked, x mark unsettled, t terminating, k
// lost, e finished, and a digit the number of requests.
func pods(words string) []pod {
	var all []pod
	for i, word := range strings.Fields(words) {
		name, marks, _ := strings.Cut(word, ":")
		p := pod{name: name, created: time.Unix(int64(i), 0)}
		for _, m := range marks {
			switch m {
			case 'r':
				p.rank = serving
			case 'n':
				p.rank = notReady
			case 'p':
				p.rank = notRunning
			case 'u':
				p.unschedulable = true
			case 'd':
				p.draining = "then"
			case 'f':
				p.drained = true
			case 'l':
				p.marked = true
			case 'x':
				p.markUnsettled = true
			case 't':
				p.terminating = true
			case 'k':
				p.terminating, p.lost = true, true
			case 'e':
				p.finished = true
			default:
				p.requests = int(m - '0')
			}
		}
		all = append(all, p)
	}
	return all
}

func formatActions(actions []action) string {
	var words []string
	for _, a := range actions {
		word := string(a.kind) + " " + a.deployment
		if a.pod != "" {
			word = string(a.kind) + " " + a.pod
		}
		if a.replicas != 0 {
			word += fmt.Sprint(" ", a.replicas)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		desired   int
		replicas  int // of the current Deployment; -1 means there is none
		pods      string
		old       int // replicas of the old Deployment; 0 means there is none
		oldPods   string
		makeRoom  bool
		roomMade  *int
		want      string
		needsRoom bool
	}{
		{name: "nothing wanted", replicas: -1},
		{name: "from zero", desired: 3, replicas: -1, want: "create new 3"},
		{name: "as wanted", desired: 2, replicas: 2, pods: "a:r b:r"},
		{name: "wanted and not created yet", desired: 2, replicas: 2, pods: ""},
		{name: "more wanted", desired: 3, replicas: 1, pods: "a:r", want: "scale new 3"},
		{name: "fewer: the one with the fewest requests", desired: 2, replicas: 3, pods: "a:r3 b:r1 c:r2", want: "drain b"},
		{name: "fewer: the newest of equals", desired: 1, replicas: 3, pods: "a:r b:r c:r", want: "drain c, drain b"},
		{name: "fewer: one that is not ready", desired: 1, replicas: 2, pods: "a:n9 b:r", want: "drain a"},
		{name: "fewer: one without a node before that", desired: 2, replicas: 3, pods: "a:n b: c:r", want: "drain b"},
		{name: "fewer: one that was never created", desired: 1, replicas: 3, pods: "a:r b:r", want: "drain b, scale new 2"},
		{name: "one drains, and that is enough", desired: 1, replicas: 2, pods: "a:r b:rd"},
		{name: "done: marked first", desired: 1, replicas: 2, pods: "a:r b:rdf", want: "mark b"},
		{name: "marked: lowered", desired: 1, replicas: 2, pods: "a:r b:rdfl", want: "scale new 1"},
		{name: "marked a moment ago: the controllers shall see the mark first", desired: 1, replicas: 2, pods: "a:r b:rdflx"},
		{name: "marked, and another to be marked: one thing at a time", desired: 1, replicas: 3, pods: "a:r b:rdfl c:rdf", want: "mark c"},
		{name: "scaled to zero by others: its pods end first", desired: 0, replicas: 0, pods: "a:r"},
		{name: "lowered: its end is waited for", desired: 1, replicas: 1, pods: "a:r b:rdfl"},
		{name: "it ends", desired: 1, replicas: 1, pods: "a:r b:rdflt"},
		{name: "only those that are done", desired: 1, replicas: 3, pods: "a:r b:rdfl c:rd", want: "scale new 2"},
		{name: "one after the other", desired: 1, replicas: 2, pods: "a:r b:rdfl c:rd"},
		{name: "undrained", desired: 2, replicas: 2, pods: "a:r b:rd", want: "undrain b"},
		{name: "undrained, and more", desired: 4, replicas: 2, pods: "a:r b:rdf", want: "undrain b, scale new 4"},
		{name: "undrained although marked", desired: 2, replicas: 2, pods: "a:r b:rdfl", want: "undrain b"},
		{name: "too late for undraining", desired: 2, replicas: 1, pods: "a:r b:rdfl", want: "scale new 2"},
		{name: "the one that is not too late", desired: 2, replicas: 2, pods: "a:r b:rdfl c:rd", want: "undrain c"},
		{name: "a pod breaks while another drains", desired: 1, replicas: 2, pods: "a:n b:rd", want: "undrain b, drain a"},
		{name: "a pod breaks while another is marked", desired: 1, replicas: 2, pods: "a:n b:rdfl", want: "undrain b, drain a"},
		{name: "to zero", desired: 0, replicas: 2, pods: "a:r b:r", want: "drain b, drain a"},
		{name: "to zero, drained in part", desired: 0, replicas: 2, pods: "a:rdf b:rd", want: "mark a"},
		{name: "to zero, all marked", desired: 0, replicas: 2, pods: "a:rdfl b:rdfl", want: "delete new"},
		{name: "to zero, nothing was created yet", desired: 0, replicas: 2, want: "delete new"},
		{name: "to zero: remains do not count", desired: 0, replicas: 1, pods: "a:e b:rdfl", want: "delete new"},
		{name: "evicted: its ReplicaSet creates another", desired: 1, replicas: 1, pods: "a:e b:n"},
		{name: "scaled by others", desired: 2, replicas: 0, want: "scale new 2"},
		{name: "a pod is deleted while it drains", desired: 1, replicas: 2, pods: "a:r b:rdt c:p", want: "drain c"},

		{name: "model gone", replicas: -1, old: 2, oldPods: "x:r y:n", want: "drain y, drain x"},
		{name: "model gone, nothing left", replicas: -1, old: 1, oldPods: "x:rdfl", want: "delete old"},
		{name: "model gone, nothing created", replicas: -1, old: 3, want: "delete old"},

		{name: "new template: a surge pod first", desired: 2, replicas: -1, old: 2, oldPods: "x:r y:r", want: "create new 1"},
		{name: "new template: waits for it", desired: 2, replicas: 1, pods: "a:n", old: 2, oldPods: "x:r y:r"},
		{name: "new template: an old one drains when it is ready", desired: 2, replicas: 1, pods: "a:r", old: 2, oldPods: "x:r1 y:r0",
			want: "scale new 2, drain y"},
		{name: "new template: next", desired: 2, replicas: 2, pods: "a:r b:n", old: 2, oldPods: "x:r yd:rd"},
		{name: "new template: last", desired: 2, replicas: 2, pods: "a:r b:r", old: 1, oldPods: "x:r", want: "drain x"},
		{name: "new template: a broken old one makes room at once", desired: 2, replicas: -1, old: 2, oldPods: "x:r y:n",
			want: "create new 1, drain y"},
		{name: "new template: all old ones are broken", desired: 1, replicas: -1, old: 1, oldPods: "x:n", want: "create new 1, drain x"},
		{name: "new template: fewer wanted", desired: 1, replicas: -1, old: 3, oldPods: "x:r y:r z:r", want: "create new 1, drain z, drain y"},
		{name: "new template: more wanted", desired: 4, replicas: 1, pods: "a:n", old: 2, oldPods: "x:r y:r", want: "scale new 2"},
		{name: "new template: no room", desired: 1, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r", want: "drain x"},
		{name: "new template: room is being made", desired: 3, replicas: 1, pods: "a:u", old: 3, oldPods: "x:r y:r z:rd", want: "room z"},
		{name: "new template: room was made", desired: 2, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r", needsRoom: true},
		{name: "new template: no room, for a time", desired: 2, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r", makeRoom: true,
			want: "drain x, scale new 2"},
		{name: "new template: a deleted old pod may free enough", desired: 2, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r y:nt", makeRoom: true},
		{name: "new template: a lost old pod frees nothing", desired: 2, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r y:nk", makeRoom: true,
			want: "drain x, scale new 2"},
		{name: "new template: a lost old pod that served made no room", desired: 1, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r y:rk",
			want: "drain x"},
		{name: "new template: that room is being made is recorded", desired: 3, replicas: 2, pods: "a:r b:u", old: 2, oldPods: "x:r z:rd", want: "room z 1"},
		{name: "new template: it is recorded once", desired: 3, replicas: 1, pods: "a:u", old: 3, oldPods: "x:r y:r z:rd", roomMade: new(0)},
		{name: "new template: a broken old pod makes no room", desired: 3, replicas: 1, pods: "a:u", old: 3, oldPods: "x:r y:r z:nd"},
		{name: "new template: room was made, and is too little", desired: 2, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r", makeRoom: true,
			roomMade: new(0)},
		{name: "new template: the same, and fewer are wanted", desired: 1, replicas: 1, pods: "a:u", old: 1, oldPods: "x:r", makeRoom: true,
			roomMade: new(0)},
		{name: "new template: the next one has no room", desired: 2, replicas: 2, pods: "a:r b:u", old: 1, oldPods: "x:r", roomMade: new(0), want: "drain x"},
		{name: "new template: one that had room is gone", desired: 3, replicas: 2, pods: "a:r b:n", old: 1, oldPods: "x:r", roomMade: new(3), want: "room new 2"},
		{name: "no room, and nothing old to make it", desired: 2, replicas: 2, pods: "a:r b:u"},
		{name: "two old templates", desired: 1, replicas: 1, pods: "a:r", old: 1, oldPods: "x:rdfl", want: "delete old"},
		{name: "old pods that were never created", desired: 1, replicas: -1, old: 2, oldPods: "x:r", want: "create new 1, scale old 1"},
	} {
		var all []deployment
		if tt.old > 0 {
			all = append(all, deployment{name: "old", replicas: tt.old, pods: pods(tt.oldPods)})
		}
		if tt.replicas >= 0 {
			all = append(all, deployment{name: "new", replicas: tt.replicas, roomMade: tt.roomMade, pods: pods(tt.pods)})
		}
		w := target{current: "new", desired: tt.desired, makeRoom: tt.makeRoom}
		if strings.HasPrefix(tt.name, "model gone") {
			w = target{}
		}
		got, needsRoom := plan(w, all)
		sorted := func(s string) []string {
			words := strings.Split(s, ", ")
			slices.Sort(words)
			return words
		}
		if diff := cmp.Diff(sorted(tt.want), sorted(formatActions(got))); diff != "" || needsRoom != tt.needsRoom {
			t.Errorf("%s: needsRoom %v %s", tt.name, needsRoom, diff)
		}
	}
}

// A pod that makes room and dies with its node frees nothing. So another pod makes room instead,
// but only one, also while the lost pod stays.
func TestLostPodHasMadeNoRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, oldPods, by, want string }{
		{name: "the pod that made room is lost", oldPods: "x:r y:nk", by: "y", want: "drain x, no-room new"},
		{name: "the same, and another makes room", oldPods: "w:r x:rd y:nk", by: "y", want: "room x"},
		{name: "the other one made room", oldPods: "w:r y:nk", by: "x"},
		{name: "an earlier release has not told which pod made room", oldPods: "x:r y:nk"},
		{name: "the pod that made room ends in time", oldPods: "x:r y:nt", by: "y"},
	} {
		got, _ := plan(target{current: "new", desired: 1}, []deployment{
			{name: "old", replicas: 1, pods: pods(tt.oldPods)},
			{name: "new", replicas: 1, roomMade: new(0), roomMadeBy: tt.by, pods: pods("a:u")},
		})
		if diff := cmp.Diff(tt.want, formatActions(got)); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// A lost pod may be gone from the API before another pod may make room. Nothing tells then that the
// pod was lost, so its record must be gone, too.
func TestLostPodThatIsGoneHasMadeNoRoom(t *testing.T) {
	t.Parallel()
	current := deployment{name: "new", replicas: 1, roomMade: new(0), roomMadeBy: "y", pods: pods("a:u")}
	steps := []struct {
		old      string
		makeRoom bool
		want     string
	}{
		{"x:r y:nk", false, "no-room new"},
		{"x:r", true, "drain x, scale new 2"},
	}
	for _, step := range steps {
		got, _ := plan(target{current: "new", desired: 2, makeRoom: step.makeRoom}, []deployment{
			{name: "old", replicas: 1, pods: pods(step.old)}, current,
		})
		if diff := cmp.Diff(step.want, formatActions(got)); diff != "" {
			t.Errorf("%s: %s", step.old, diff)
		}
		if slices.ContainsFunc(got, func(a action) bool { return a.kind == actionNoRoom }) {
			current.roomMade, current.roomMadeBy = nil, ""
		}
	}
}

// A pod that only the Deployment's controller has seen may serve already. It must not be treated as
// not created.
func TestPodThatOnlyTheControllerHasSeen(t *testing.T) {
	t.Parallel()
	got, _ := plan(target{current: "new", desired: 1}, []deployment{{name: "new", replicas: 2, statusReplicas: 2, pods: pods("a:r")}})
	if diff := cmp.Diff("drain a", formatActions(got)); diff != "" {
		t.Error(diff)
	}
}

func TestDeletedDeploymentStaysUntouched(t *testing.T) {
	t.Parallel()
	got, _ := plan(target{current: "new", desired: 1}, []deployment{
		{name: "new", replicas: 3, deleting: true, pods: pods("a:rdf b:r")}, {name: "old", replicas: 2, deleting: true, pods: pods("x:r")},
	})
	for _, a := range got {
		if a.kind != actionDrain {
			t.Errorf("got %s", formatActions(got))
		}
	}
}

// simulation simulates the API and its controllers: ReplicaSets that delete pods by rank and cost,
// a scheduler with limited capacity, and gateways with requests.
type simulation struct {
	t        *testing.T
	random   *rand.Rand
	capacity int
	next     int
	ordered  map[string]bool // names that are LeaderWorkerSets
	current  string          // the name in the target
	all      []deployment
	log      []string
}

func (w *simulation) find(name string) *deployment {
	for i := range w.all {
		if w.all[i].name == name {
			return &w.all[i]
		}
	}
	return nil
}

func (w *simulation) fail(why string) {
	w.t.Helper()
	w.t.Fatalf("%s after\n%s", why, strings.Join(w.log[max(0, len(w.log)-40):], "\n"))
}

// execute executes a random part of the planned actions.
func (w *simulation) execute(actions []action, desired int) {
	before := w.stayingPods()
	defer func() {
		if after := w.stayingPods(); after > max(before, desired+1) {
			w.fail(fmt.Sprintf("%d pods are there or to come, %d are desired", after, desired))
		}
	}()
	for _, a := range actions {
		if w.random.IntN(5) == 0 {
			return // The leader dies, or the API rejects its write.
		}
		w.log = append(w.log, formatActions([]action{a}))
		d := w.find(a.deployment)
		switch a.kind {
		case actionCreate:
			w.all = append(w.all, deployment{name: a.deployment, replicas: a.replicas, ordered: w.ordered[a.deployment]})
		case actionScale:
			d.replicas = a.replicas
		case actionRoom:
			d.roomMade, d.roomMadeBy = &a.replicas, a.pod
		case actionNoRoom:
			d.roomMade, d.roomMadeBy = nil, ""
		case actionDelete:
			for _, p := range d.pods {
				if p.active() && !p.marked {
					w.fail("a Deployment was deleted with the unmarked pod " + p.name)
				}
			}
			w.all = slices.DeleteFunc(w.all, func(o deployment) bool { return o.name == a.deployment })
		default:
			w.applyToPod(d, a)
		}
	}
}

func (w *simulation) applyToPod(d *deployment, a action) {
	i := slices.IndexFunc(d.pods, func(p pod) bool { return p.name == a.pod })
	p := &d.pods[i]
	switch a.kind {
	case actionDrain:
		p.draining = "then"
	case actionUndrain:
		p.draining, p.drained, p.marked = "", false, false
	case actionMark:
		if !p.drained {
			w.fail(p.name + " leaves with requests")
		}
		p.marked = true
	}
}

// stayingPods returns the number of pods that exist or will be created and do not drain.
func (w *simulation) stayingPods() (n int) {
	for _, d := range w.all {
		c := &deploymentPlan{deployment: d}
		n += c.stayingCount()
		for index := range d.replicas {
			if d.ordered && d.name != w.current && c.at(index) == nil {
				n-- // a group that restarts below others cannot be dropped
			}
		}
	}
	return n
}

// step simulates one event of the controllers, the scheduler or the gateways.
func (w *simulation) step() {
	d := &w.all[w.random.IntN(len(w.all))]
	if d.ordered {
		w.stepOrdered(d)
		return
	}
	active := 0
	for _, p := range d.pods {
		if p.active() {
			active++
		}
	}
	switch {
	case active < d.replicas:
		w.next++
		d.pods = append(d.pods, pod{name: fmt.Sprint(d.name, "-", w.next), created: time.Unix(int64(w.next), 0)})
		return
	case active > d.replicas:
		w.deletePod(d)
		return
	case len(d.pods) == 0:
		return
	}
	w.advancePod(&d.pods[w.random.IntN(len(d.pods))])
	d.pods = slices.DeleteFunc(d.pods, func(p pod) bool { return p.terminating && w.random.IntN(2) == 0 })
}

// stepOrdered is step for a LeaderWorkerSet, which has groups with the indexes below its replicas.
func (w *simulation) stepOrdered(d *deployment) {
	there := map[int]*pod{}
	for i := range d.pods {
		if p := &d.pods[i]; p.active() {
			there[p.index] = p
		}
	}
	for index, p := range there {
		if index >= d.replicas {
			if !p.marked {
				w.fail(p.name + " was deleted and had not been drained")
			}
			p.terminating = true
			w.log = append(w.log, p.name+" ends")
			return
		}
	}
	for index := range d.replicas {
		if there[index] == nil {
			w.next++
			d.pods = append(d.pods, pod{name: fmt.Sprint(d.name, "-", w.next), index: index, created: time.Unix(int64(w.next), 0)})
			return
		}
	}
	if len(d.pods) > 0 {
		w.advancePod(&d.pods[w.random.IntN(len(d.pods))])
		d.pods = slices.DeleteFunc(d.pods, func(p pod) bool { return p.terminating && w.random.IntN(2) == 0 })
	}
}

// restartGroups has groups be recreated as a whole, as after the restart of a worker.
func (w *simulation) restartGroups() {
	for i := range w.all {
		if d := &w.all[i]; d.ordered && len(d.pods) > 0 {
			p := &d.pods[w.random.IntN(len(d.pods))]
			p.terminating = true
			w.log = append(w.log, p.name+" restarts")
		}
	}
}

// advancePod moves one pod to its next state.
func (w *simulation) advancePod(p *pod) {
	used := 0
	for _, d := range w.all {
		for _, o := range d.pods {
			if o.rank != unscheduled {
				used++
			}
		}
	}
	switch {
	case p.terminating:
	case p.draining != "" && w.random.IntN(2) == 0:
		p.drained = true
	case p.rank == unscheduled && used >= w.capacity:
		p.unschedulable = true
	case p.rank < serving:
		p.rank, p.unschedulable = p.rank+1, false
	}
}

// breakPods makes pods unready, unless their ReplicaSet is about to delete a pod: no plan could be
// in time then.
func (w *simulation) breakPods() {
	for i := range w.all {
		d := &w.all[i]
		if len(d.pods) == 0 || d.replicas < len(d.pods) {
			continue
		}
		if p := &d.pods[w.random.IntN(len(d.pods))]; p.rank == serving {
			p.rank = notReady
			w.log = append(w.log, p.name+" breaks")
		}
	}
}

// deletePod deletes the pod that a ReplicaSet would choose.
func (w *simulation) deletePod(d *deployment) {
	cost := func(p pod) int {
		if p.marked {
			return 0
		}
		return 1
	}
	var active []*pod
	for i := range d.pods {
		if d.pods[i].active() {
			active = append(active, &d.pods[i])
		}
	}
	slices.SortFunc(active, func(a, b *pod) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return cost(*a) - cost(*b)
	})
	if !active[0].marked {
		w.fail(active[0].name + " was deleted and had not been drained")
	}
	active[0].terminating = true
	w.log = append(w.log, active[0].name+" ends")
}

// Whatever happens in whatever order, a ReplicaSet never deletes a pod that was not drained. There
// are never more pods than desired and one more. In the end there are the wanted pods.
func TestPlanConvergesFromAnyState(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1200) {
		w := &simulation{t: t, random: rand.New(rand.NewPCG(seed, 1)), ordered: map[string]bool{}}
		for i := range 3 { // of half of the runs some are LeaderWorkerSets
			w.ordered[fmt.Sprint("t", i)] = seed%2 == 1 && w.random.IntN(3) > 0
		}
		want := target{current: "t0", desired: 1 + w.random.IntN(4)}
		w.capacity = 4 + w.random.IntN(4)
		for step := range 400 {
			if step < 200 && w.random.IntN(40) == 0 {
				want = target{current: fmt.Sprint("t", w.random.IntN(3)), desired: w.random.IntN(5)}
				w.log = append(w.log, fmt.Sprintf("wanted: %+v", want))
			}
			w.current = want.current
			actions, needsRoom := plan(want, w.all)
			w.execute(actions, want.desired)
			want.makeRoom = needsRoom && w.random.IntN(10) == 0
			if step < 200 && w.random.IntN(10) == 0 {
				w.breakPods()
			}
			if step < 200 && w.random.IntN(20) == 0 {
				w.restartGroups()
			}
			for range 3 {
				if len(w.all) > 0 {
					w.step()
				}
			}
		}
		w.checkFinalState(want, seed)
	}
}

func (w *simulation) checkFinalState(want target, seed uint64) {
	staying := 0
	for _, d := range w.all {
		for _, p := range d.pods {
			switch {
			case p.terminating:
			case p.draining != "" || d.name != want.current || p.rank != serving:
				w.fail(fmt.Sprintf("seed %d: in the end there is %+v of %s, wanted %+v", seed, p, d.name, want))
			default:
				staying++
			}
		}
	}
	if staying != want.desired || want.desired == 0 && len(w.all) > 0 {
		w.fail(fmt.Sprintf("seed %d: %d pods and %d Deployments in the end, wanted %+v", seed, staying, len(w.all), want))
	}
}

// A template that fits on no node costs one old pod, however long it stays and however many
// replicas are wanted meanwhile.
func TestATemplateThatFitsNowhereCostsOnePod(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		w := &simulation{t: t, random: rand.New(rand.NewPCG(seed, 2)), current: "new", all: []deployment{{name: "old", replicas: 4, pods: pods("a:r b:r c:r d:r")}}}
		want := target{current: "new"}
		for step := range 400 {
			want.desired, want.makeRoom = 4+step/50%3, true
			actions, _ := plan(want, w.all)
			w.execute(actions, want.desired)
			w.step()
		}
		staying := 0
		for _, d := range w.all {
			staying += (&deploymentPlan{deployment: d}).count(func(p pod) bool { return p.stays() && p.rank == serving })
		}
		if staying != 3 {
			w.fail(fmt.Sprintf("seed %d: %d pods serve", seed, staying))
		}
	}
}
