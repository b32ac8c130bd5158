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

// here is the name of the gateway's own machine in tests.
const here = "here"

// with returns a node with this number of GPUs, whose UUIDs are the node's name and a number.
func with(name string, gpus int, labels ...string) member {
	m := member{key: name, Node: engines.Node{Name: name, Labels: labels, CPUs: 16, Memory: 64 << 30}, known: true}
	for i := range gpus {
		m.GPUs = append(m.GPUs, engines.GPU{UUID: fmt.Sprintf("%s/%d", name, i), Index: i})
	}
	if name == here {
		m.key = localNode
	}
	return m
}

// lost returns the node as one that does not answer.
func lost(m member) member {
	m.Lost = true
	return m
}

// unknown returns the node as one whose resources are not known yet.
func unknown(m member) member {
	return member{key: m.key}
}

// model returns a model whose replicas need this share of GPUs each; with 0 it names no resources.
func model(name string, desired int, gpu float64) local.Model {
	m := local.Model{Model: engines.Model{Name: name, Desired: desired}}
	if gpu > 0 {
		m.Resources = &engines.Resources{CPU: 1, GPU: gpu}
	}
	return m
}

// changed returns the model as f changes it.
func changed(m local.Model, f func(*local.Model)) local.Model {
	f(&m)
	return m
}

// locationOf parses "chat-0@gpu-1".
func locationOf(text string) location {
	id, node, _ := strings.Cut(text, "@")
	if node == here {
		node = localNode
	}
	return location{id, node}
}

func assignmentOf(text string) assignment {
	s := locationOf(text)
	name := s.id[:strings.LastIndex(s.id, "-")]
	return assignment{s, name, engines.ReplicaIndex(name, s.id)}
}

func assignmentsOf(text string) (assignments []assignment) {
	for field := range strings.FieldsSeq(text) {
		assignments = append(assignments, assignmentOf(field))
	}
	return assignments
}

// shownOf parses replicas that are separated by "; ". Each is written "chat-0@gpu-1 ready 0,1": a
// location, a state, and the numbers of the GPUs. A pending replica has a reason, unless "placing"
// is in the place of the numbers.
func shownOf(o *observation, text string) (shown []replica) {
	for line := range strings.SplitSeq(text, "; ") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		s := assignmentOf(fields[0])
		r := replica{location: s.location, model: s.model, index: s.index, state: engines.State(fields[1])}
		placing := len(fields) > 2 && fields[2] == "placing"
		if r.state == engines.Pending && !placing {
			r.reason = "needs what its node does not have"
		}
		if len(fields) > 2 && !placing {
			_, node, _ := strings.Cut(fields[0], "@")
			var devices []string
			for _, number := range strings.Split(fields[2], ",") {
				devices = append(devices, node+"/"+number)
			}
			r.gpus = strings.Join(devices, ",")
			if r.resources = (engines.Resources{CPU: 1, GPU: float64(len(devices))}); o.revisions[s.model].Resources.GPU < 1 {
				r.resources.GPU = o.revisions[s.model].Resources.GPU
			}
		}
		shown = append(shown, r)
	}
	return shown
}

// observationOf returns an observation of these models and nodes in which no replica runs.
func observationOf(wanted []local.Model, members ...member) *observation {
	var m desiredModels
	m.update(&wanted)
	return &observation{
		now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), models: m.list, revisions: m.byName, members: members, inFlight: func(string) int { return 0 },
	}
}

// text formats assignments in the order of their ids.
func text(assignments []assignment) string {
	var list []string
	for _, s := range assignments {
		node := s.node
		if node == localNode {
			node = here
		}
		list = append(list, s.id+"@"+node)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// without formats pending replicas with their reasons.
func without(pending []pendingReplica) string {
	var list []string
	for _, v := range pending {
		list = append(list, v.id+": "+v.reason)
	}
	return strings.Join(list, "; ")
}
