package nodes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// here is how tests write this host.
const here = "here"

// with is a host with so many GPUs, named like it and a number.
func with(name string, gpus int, labels ...string) member {
	m := member{key: name, Node: engines.Node{Name: name, Labels: labels, CPUs: 16, Memory: 64 << 30}, known: true}
	for i := range gpus {
		m.GPUs = append(m.GPUs, engines.GPU{UUID: fmt.Sprintf("%s/%d", name, i), Index: i})
	}
	if name == here {
		m.key = thisHost
	}
	return m
}

// lost is a host that does not answer.
func lost(m member) member {
	m.Lost = true
	return m
}

// unknown is a host that has not said yet what it has.
func unknown(m member) member {
	return member{key: m.key}
}

// model is one whose replicas take so many GPUs each; 0: it names no resources.
func model(name string, desired int, gpu float64) local.Model {
	m := local.Model{Model: engines.Model{Name: name, Desired: desired}}
	if gpu > 0 {
		m.Resources = &engines.Resources{CPU: 1, GPU: gpu}
	}
	return m
}

// changed is the model after f.
func changed(m local.Model, f func(*local.Model)) local.Model {
	f(&m)
	return m
}

// spotOf reads "chat-0@gpu-1".
func spotOf(text string) spot {
	id, host, _ := strings.Cut(text, "@")
	if host == here {
		host = thisHost
	}
	return spot{id, host}
}

func seatOf(text string) seat {
	s := spotOf(text)
	name := s.id[:strings.LastIndex(s.id, "-")]
	return seat{s, name, indexOf(name, s.id)}
}

func seatsOf(text string) (seats []seat) {
	for field := range strings.FieldsSeq(text) {
		seats = append(seats, seatOf(field))
	}
	return seats
}

// shownOf reads "chat-0@gpu-1 ready 0,1": a state, and the numbers of its GPUs; each line is a replica.
func shownOf(w *world, text string) (shown []replica) {
	for line := range strings.SplitSeq(text, "; ") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		s := seatOf(fields[0])
		r := replica{spot: s.spot, model: s.model, index: s.index, state: engines.State(fields[1])}
		if len(fields) > 2 {
			_, host, _ := strings.Cut(fields[0], "@")
			var devices []string
			for _, number := range strings.Split(fields[2], ",") {
				devices = append(devices, host+"/"+number)
			}
			r.gpus = strings.Join(devices, ",")
			if r.resources = (engines.Resources{CPU: 1, GPU: float64(len(devices))}); w.editions[s.model].Resources.GPU < 1 {
				r.resources.GPU = w.editions[s.model].Resources.GPU
			}
		}
		shown = append(shown, r)
	}
	return shown
}

// worldOf is a world of these models and hosts.
func worldOf(wanted []local.Model, members ...member) *world {
	var m models
	m.learn(&wanted)
	return &world{
		now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), models: m.list, editions: m.byName, members: members, inFlight: func(string) int { return 0 },
	}
}

// text writes the seats in the order of their ids.
func text(seats []seat) string {
	var list []string
	for _, s := range seats {
		host := s.host
		if host == thisHost {
			host = here
		}
		list = append(list, s.id+"@"+host)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// without writes who has no host, and why.
func without(vacancies []vacancy) string {
	var list []string
	for _, v := range vacancies {
		list = append(list, v.id+": "+v.reason)
	}
	return strings.Join(list, "; ")
}
