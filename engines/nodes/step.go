package nodes

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// models is what is wanted, and what has changed of it.
type models struct {
	// from is what list and byName were made of.
	from   *[]local.Model
	list   []local.Model
	byName map[string]*edition
	count  uint64
}

// edition is a model with numbers that change when it does.
type edition struct {
	local.Model
	// spec changes with anything but the number of replicas.
	spec  uint64
	slots int
}

// told is what a host has been told last.
type told struct {
	host Host
	node engines.Node
	wish []order
}

// order is what a host has been told of a model of which it has replicas: what they are, how many there shall be everywhere, and its own.
type order struct {
	*edition
	desired, most int
	indices       []int
}

// learn takes in what is wanted. It tells whether there are other models than before, or other facts about them.
func (m *models) learn(wanted *[]local.Model) (changed bool) {
	if m.from == wanted {
		return false
	}
	byName := make(map[string]*edition, len(*wanted))
	for _, model := range *wanted {
		next := &edition{Model: model}
		next.Launcher, next.Indices = engines.Local, nil
		if last := m.byName[next.Name]; last == nil || !reflect.DeepEqual(last.Model, next.Model) {
			changed = true
			m.count++
			next.spec = m.count
			next.slots = next.Version.Slots.Count(next.Version.Complete(next.Launch.Task, next.Launch.Variables))
			if last != nil && sameSpec(last.Model, next.Model) {
				next.spec = last.spec
			}
		} else {
			next.spec, next.slots = last.spec, last.slots
		}
		byName[next.Name] = next
	}
	changed = changed || len(byName) != len(m.byName)
	m.from, m.list, m.byName = wanted, *wanted, byName
	return changed
}

// sameSpec compares what replicas are, not how many there shall be.
func sameSpec(a, b local.Model) bool {
	a.Desired, a.Most = b.Desired, b.Most
	return reflect.DeepEqual(a, b)
}

// step makes a plan and carries it out. Unless all is true it does so only when the fleet shows something else. It tells whether it has.
func (c *Controller) step(now time.Time, all bool) bool {
	c.mu.Lock()
	wanted := c.wanted
	c.mu.Unlock()
	if wanted == nil {
		return false
	}
	if c.models.learn(wanted) {
		c.report(c.pending) // so that the fleet shows also what still leaves of a model that is new
	}
	hosts, members := c.roll(now)
	shown := c.look(members)
	if !all && slices.Equal(shown, c.shown) {
		return false
	}
	c.shown = shown
	w := &world{now: now, models: c.models.list, editions: c.models.byName, members: members, shown: shown, inFlight: c.config.InFlight,
		waits: len(c.silent) > 0, keeps: now.Before(c.keepUntil)}
	p := w.plan(c.memory)
	var evict []string
	if c.config.Evict != nil && !w.waits && p.wantsEviction() {
		evict = p.evict(c.config.Idle())
	}
	c.memory = p.memory
	c.log(p, evict)
	c.report(c.pendingOf(p)) // before the hosts hear of it: what gets a host now is not pending on it twice
	c.tell(hosts, p)
	if len(evict) > 0 {
		c.config.Evict(evict)
	}
	return true
}

func (c *Controller) lookIn() time.Duration {
	if c.vague || len(c.silent) > 0 {
		return lookSoon
	}
	return lookAgain
}

// roll lists the hosts that can be told something, and what they have.
func (c *Controller) roll(now time.Time) (hosts []Host, members []member) {
	names, silent := map[string]bool{}, map[Host]bool{}
	c.vague = false
	if c.config.Local != nil {
		node, known := c.config.Local.Node()
		if known {
			names[node.Name] = true
		} else {
			node, c.vague = engines.Node{}, true
		}
		node.Lost = false
		hosts, members = append(hosts, c.config.Local), append(members, member{thisHost, node, known, false})
	}
	for _, h := range c.config.Others() {
		node, known := h.Node()
		last := c.lastTold(h)
		if last == nil && (!known || node.Lost) {
			if !known {
				silent[h] = true
			}
			continue
		}
		if !known {
			node = last.node
			node.Lost = true
		}
		m := member{node.Name, node, true, names[node.Name] || node.Name == thisHost}
		if m.shut {
			m.key = "\x00" + node.Name // the name is another's
		}
		names[node.Name] = true
		hosts, members = append(hosts, h), append(members, m)
	}
	c.await(silent, now)
	return hosts, members
}

// await notes which hosts have not said yet what an earlier run has left there: those that the first plan finds silent. A host that joins
// later has nothing of ours.
func (c *Controller) await(silent map[Host]bool, now time.Time) {
	if c.silent == nil {
		if c.silent = silent; len(silent) > 0 {
			c.keepUntil = now.Add(Settle)
		}
	}
	maps.DeleteFunc(c.silent, func(h Host, _ bool) bool { return !silent[h] || !now.Before(c.keepUntil) })
}

// lastTold is what this host has been told last; nil: nothing yet.
func (c *Controller) lastTold(h Host) *told {
	for _, t := range c.told {
		if t.host == h {
			return t
		}
	}
	return nil
}

// look lists the replicas of the wanted models that hosts have, as far as a plan cares.
func (c *Controller) look(members []member) []replica {
	keys := map[string]string{"": thisHost}
	for _, m := range members {
		if !m.shut {
			keys[m.Name] = m.key
		}
	}
	snapshot := c.config.Fleet.Snapshot()
	var shown []replica
	for i := range c.models.list {
		m := snapshot.Models[c.models.list[i].Name]
		if m == nil {
			continue
		}
		for _, r := range m.Replicas {
			if _, ours := c.pending[r.ID]; r.Launcher != engines.Local || ours && r.Node == "" && r.State == engines.Pending {
				continue
			}
			key, ok := keys[r.Node]
			if !ok && !c.vague {
				key = "\x00" + r.Node // a host that is not there: its indices are in use
			}
			shown = append(shown, replica{spot{r.ID, key}, m.Name, indexOf(m.Name, r.ID), r.State, r.PID, r.Resources, r.GPUs})
		}
	}
	return shown
}

// pendingOf is what the fleet hears of replicas without a host.
func (c *Controller) pendingOf(p *plan) map[string]engines.Replica {
	pending := make(map[string]engines.Replica, len(p.vacancies))
	reasons := map[string]string{}
	for _, v := range p.vacancies {
		since := p.now
		if before, ok := c.pending[v.id]; ok {
			since = before.Since
		}
		pending[v.id] = engines.Replica{
			ID: v.id, Model: v.model.Name, State: engines.Pending, Launcher: engines.Local, Reason: v.reason, Since: since, Slots: v.model.slots,
		}
		reasons[v.model.Name] = v.reason
	}
	c.mu.Lock()
	c.reasons = reasons
	c.mu.Unlock()
	return pending
}

func (c *Controller) report(pending map[string]engines.Replica) {
	c.pending = pending
	part := engines.Part{}
	for i := range c.models.list {
		part.Models = append(part.Models, c.models.byName[c.models.list[i].Name].Model.Model)
	}
	for _, r := range pending {
		part.Replicas = append(part.Replicas, r)
	}
	slices.SortFunc(part.Replicas, func(a, b engines.Replica) int { return cmp.Compare(a.ID, b.ID) })
	c.config.Fleet.Set(source, part)
}

// tell tells each host for which something has changed what there shall be on it.
func (c *Controller) tell(hosts []Host, p *plan) {
	there := map[string]map[string][]int{} // host, model
	for _, s := range p.seats {
		if there[s.host] == nil {
			there[s.host] = map[string][]int{}
		}
		there[s.host][s.model] = append(there[s.host][s.model], s.index)
	}
	heard := map[string]bool{}
	for i, h := range hosts {
		key := p.members[i].key
		heard[key] = true
		last := c.told[key]
		if last == nil || last.host != h {
			last = nil
		}
		wish := c.wishOf(p, key, last, there[key])
		if last != nil && slices.EqualFunc(last.wish, wish, order.equal) {
			last.node = p.members[i].Node
			continue
		}
		c.told[key] = &told{h, p.members[i].Node, wish}
		h.Set(modelsOf(wish))
	}
	maps.DeleteFunc(c.told, func(key string, _ *told) bool { return !heard[key] })
	maps.DeleteFunc(c.turns, func(model string, _ turn) bool { return c.models.byName[model] == nil })
}

func (o order) equal(other order) bool {
	return o.Name == other.Name && o.spec == other.spec && o.desired == other.desired && o.most == other.most && slices.Equal(o.indices, other.indices)
}

// wishOf lists the models of which the host shall have replicas. Of others it hears nothing: what is in their environment is not for it.
func (c *Controller) wishOf(p *plan, host string, last *told, indices map[string][]int) (wish []order) {
	for i := range c.models.list {
		e := c.models.byName[c.models.list[i].Name]
		if own := indices[e.Name]; len(own) > 0 {
			wish = append(wish, order{c.editionFor(p, e, host, last), e.Desired, e.Most, slices.Sorted(slices.Values(own))})
		}
	}
	return wish
}

// modelsOf writes the wish as the host reads it.
func modelsOf(wish []order) []local.Model {
	list := make([]local.Model, len(wish))
	for i, o := range wish {
		list[i] = o.Model
		list[i].Desired, list[i].Most, list[i].Indices = o.desired, o.most, slices.Clone(o.indices)
	}
	return list
}

func (c *Controller) log(p *plan, evict []string) {
	for _, a := range p.acts {
		c.config.Log.Info("replica "+a.what, zap.String("replica", a.id), zap.String("node", p.nameOf(a.host)))
	}
	for _, v := range p.vacancies {
		if before, ok := c.pending[v.id]; !ok || before.Reason != v.reason {
			c.config.Log.Info("replica has no host", zap.String("replica", v.id), zap.String("reason", v.reason))
		}
	}
	if len(evict) > 0 {
		c.config.Log.Info("idle models are asked to make room", zap.String("models", strings.Join(evict, ", ")))
	}
}
