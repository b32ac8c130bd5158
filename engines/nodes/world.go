package nodes

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// thisHost is the key of the host that we run on, whose name is not known at first. The others go by their names.
const thisHost = ""

// member is a host as a plan sees it.
type member struct {
	key string
	engines.Node
	// known: it has said what it has.
	known bool
	// shut: nothing may run there, because its name is another's.
	shut bool
}

// spot is a replica on a host. After a loss two hosts may have one of the same id for a while.
type spot struct{ id, host string }

// replica is what the fleet shows of one that a host has.
type replica struct {
	spot
	model string
	// index is -1 when the id is not one of the model's.
	index     int
	state     engines.State
	pid       int
	resources engines.Resources
	gpus      string
}

func (r replica) leaves() bool { return r.state == engines.Draining || r.state == engines.Stopped }

// seat is a replica that there shall be on a host.
type seat struct {
	spot
	model string
	index int
}

// release is a seat that there shall be no more.
type release struct {
	// spec is what its replica was to be; only one of the same may be called back.
	spec uint64
	at   time.Time
	// seen: the fleet has shown its replica.
	seen bool
}

// memory is what one plan leaves to the next.
type memory struct {
	// seats in the order in which they were given.
	seats []seat
	// released are seats whose replicas may still be there.
	released map[spot]release
	// marked are replicas that are to make room, and since when.
	marked map[spot]time.Time
	// refused are seats for which there should be room and whose hosts say that there is none, and since when.
	refused map[spot]time.Time
}

// world is what a plan is made of, beside its memory.
type world struct {
	now      time.Time
	models   []local.Model
	editions map[string]*edition
	// members, this host first.
	members  []member
	shown    []replica
	inFlight func(replica string) int
	// waits: hosts have not said yet what an earlier run has left there, so that nobody gets a host. keeps: nor does anybody lose one for being
	// too many, because it is not known yet how many there were.
	waits, keeps bool
}

// seat is the one that the replica has, or had.
func (r replica) seat() seat { return seat{r.spot, r.model, r.index} }

func idOf(model string, index int) string { return model + "-" + strconv.Itoa(index) }

// indexOf is the number in a replica's id; -1 when it is not one of the model's.
func indexOf(model, id string) int {
	digits, ok := strings.CutPrefix(id, model+"-")
	index, err := strconv.Atoi(digits)
	if !ok || err != nil || index < 0 || strconv.Itoa(index) != digits {
		return -1
	}
	return index
}

// wantOf is what a replica of the model asks for.
func wantOf(e *edition) placement.Want {
	w := placement.Want{Model: e.Name, Policy: e.Placement}
	if e.Resources != nil {
		w.Resources = *e.Resources
	}
	return w
}

// only lists the hosts at these places; all of them as they are.
func (p *plan) only(hosts []placement.Host, places []int) []placement.Host {
	if len(places) == len(hosts) {
		return hosts
	}
	some := make([]placement.Host, len(places))
	for i, at := range places {
		some[i] = hosts[at]
	}
	return some
}

func (p *plan) nameOf(key string) string {
	if i, ok := p.at[key]; ok {
		return p.members[i].Name
	}
	return strings.TrimPrefix(key, "\x00")
}
