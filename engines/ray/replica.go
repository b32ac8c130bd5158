package ray

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
)

const (
	// makeRoomAfter is how long a successor may wait for room in Ray before a replica that it
	// replaces is drained.
	makeRoomAfter = 30 * time.Second
	// submitSettle is how long a submitted job may be missing from the list of jobs.
	submitSettle = 10 * time.Second
	// stopSettle is how long the job of a failed replica may take to end before the next one is
	// submitted. A job on a lost node never ends.
	stopSettle = 15 * time.Second
	// maxPortRetries is how often a replica that lost its port to another program is started again
	// without a pause.
	maxPortRetries = 3
)

// key identifies a replica.
type key struct {
	model string
	index int
}

// replica is a replica with its newest job. Launcher.mu guards it.
type replica struct {
	engines.Replica
	meta metadata
	// job is the id of its newest job. It is empty while there is none.
	job string
	// restartJob is the job that an operator wants replaced. It is empty if there is none.
	restartJob string
	// submitted is when this gateway submitted the job. It is zero for a job that was found.
	submitted time.Time
	// listed: Ray has listed the job. ended: the job does not run.
	listed, ended bool
	// watch probes the server of a running job; nil while none runs.
	watch *watch
	// served: the replica may have had requests, so that its log may hold prompts.
	served bool
	// readySince is when it became ready; zero while it is not.
	readySince time.Time
	// lost is when the server was found dead though Ray says that its job runs; zero: it was not.
	lost time.Time
	// draining is when it began to drain, stopping when its job was told to stop. Zero: not.
	// drainID is what all gateways call this drain. It is empty while the replica does not drain.
	draining, stopping time.Time
	drainID            string
	// stopSent is when its job was last told to stop, if stopping is not zero.
	stopSent time.Time
	// failures counts the failures in a row, collisions those because of the port. retryAt is when
	// the next job may be submitted.
	failures, collisions int
	retryAt              time.Time
}

// addLocked adds a replica without a job. mu is held.
func (l *Launcher) addLocked(k key) *replica {
	r := &replica{Replica: engines.Replica{ID: engines.ReplicaID(k.model, k.index), Model: k.model, Launcher: engines.Ray}}
	l.replicas[k] = r
	return r
}

// set changes what the fleet shows.
func (r *replica) set(state engines.State, reason string) {
	if r.State != state {
		r.Since = time.Now()
	}
	r.State, r.Reason = state, reason
}

// observe takes over what Ray says of jobs and nodes.
func (l *Launcher) observe(ctx context.Context, jobs []rayJob, nodes []rayNode) {
	l.setFault(nil)
	byID := map[string]rayNode{}
	for _, n := range nodes {
		byID[n.ID] = n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = nodes
	newest := l.newestLocked(jobs)
	for k, j := range newest {
		l.observeJobLocked(ctx, k, j, byID)
	}
	for k, r := range l.replicas {
		if _, known := newest[k]; known || time.Since(r.submitted) <= submitSettle || l.servesLocked(r) {
			continue
		}
		if !l.group.mayWrite() {
			l.forgetLocked(k, r) // the writer starts the next job
		} else if r.job != "" && !r.ended {
			l.endLocked(r, "Ray does not know its job any more")
		}
	}
	l.followLocked()
	l.publishLocked()
}

// newestLocked returns the newest job of each replica of the installation, and keeps the others as
// stale. mu is held.
func (l *Launcher) newestLocked(jobs []rayJob) map[key]rayJob {
	newest, ours, superseded, rival := map[key]rayJob{}, map[string]bool{}, map[string]bool{}, ""
	l.stale, l.unsure = nil, false
	for _, j := range jobs {
		meta, ok := decodeMetadata(j.Metadata)
		if !ok || meta.install != l.config.Name {
			continue
		}
		if l.setsBeforeFound == nil || l.ours[j.SubmissionID] || meta.gateway == l.config.Identity {
			ours[j.SubmissionID] = true
		} else if !j.hasEnded() {
			switch stranger, sure := l.group.isStranger(meta.gateway); {
			case !sure:
				l.unsure = true
			case stranger:
				rival = meta.gateway
			}
		}
		if l.superseded[j.SubmissionID] {
			superseded[j.SubmissionID] = true
		}
		k := key{meta.model, meta.index}
		other, known := newest[k]
		if known && l.compareJobsLocked(other, j) < 0 {
			other, j = j, other
		}
		if known {
			l.stale = append(l.stale, j)
			j = other
		}
		newest[k] = j
	}
	for _, r := range l.replicas {
		ours[r.job] = ours[r.job] || l.ours[r.job]
	}
	l.ours, l.superseded = ours, superseded
	if rival != "" && l.rival != rival {
		l.config.Log.Error("another gateway starts jobs of this installation, this one starts and stops none any more",
			zap.String("gateway", rival))
	}
	l.rival = rival
	return newest
}

// servesLocked reports whether a replica may have requests: it answers, or it drains. mu is held.
func (l *Launcher) servesLocked(r *replica) bool {
	return r.State == engines.Ready || r.State == engines.Draining && l.config.InFlight(r.ID) > 0
}

// compareJobsLocked orders jobs of a replica by their age, the oldest first. What this gateway
// knows of their order counts before the time of their start, because the clock of Ray's head may
// go back. mu is held.
func (l *Launcher) compareJobsLocked(a, b rayJob) int {
	return cmp.Or(cmp.Compare(rank(!l.superseded[a.SubmissionID]), rank(!l.superseded[b.SubmissionID])),
		cmp.Compare(a.StartTime, b.StartTime), cmp.Compare(a.SubmissionID, b.SubmissionID))
}

// observeJobLocked takes over what Ray says of the newest job of a replica. mu is held.
func (l *Launcher) observeJobLocked(ctx context.Context, k key, j rayJob, nodes map[string]rayNode) {
	r := l.replicas[k]
	if r == nil {
		r = l.addLocked(k)
	}
	if r.job != j.SubmissionID {
		if r.job != "" && !r.listed && time.Since(r.submitted) < submitSettle {
			return // the list is older than the job
		}
		meta, _ := decodeMetadata(j.Metadata)
		l.beginLocked(r, j.SubmissionID, meta)
		r.submitted, r.served = time.Time{}, true
	}
	r.listed = true
	if r.ended {
		return
	}
	node, onNode := nodes[j.NodeID]
	if onNode {
		r.Node = cmp.Or(node.Name, node.IP)
	}
	switch {
	case onNode && !node.isAlive():
		l.endLocked(r, fmt.Sprintf("its node %s is dead", r.Node))
	case j.Status == statusPending:
		if r.State != engines.Draining {
			r.set(engines.Pending, "waits for Ray: "+j.Message)
		}
	case j.Status == statusRunning:
		l.watchLocked(ctx, r, addressOf(j, node))
	case !r.lost.IsZero():
		l.endLocked(r, r.Reason)
	case j.ErrorType == errorNoRoom: // nothing has failed: the next job waits on
		r.ended, r.retryAt = true, time.Time{}
		r.show(engines.Pending, "waits for Ray: "+lastLine(j.Message))
	default:
		l.endLocked(r, r.describeEnd(l.models[r.Model], j))
	}
}

// beginLocked makes a replica one that waits for a new job. mu is held.
func (l *Launcher) beginLocked(r *replica, job string, meta metadata) {
	l.unwatchLocked(r)
	if r.job != "" && r.job != job {
		l.superseded[r.job] = true
	}
	delete(l.superseded, job)
	r.job, r.meta = job, meta
	r.submitted, r.listed, r.ended, r.served = time.Now(), false, false, false
	r.readySince, r.lost, r.stopping = time.Time{}, time.Time{}, time.Time{}
	r.Address, r.Node, r.Restarts, r.NextStart = netip.AddrPort{}, "", meta.restarts, time.Time{}
	if r.State != engines.Draining {
		r.set(engines.Pending, "waits for Ray")
	}
	if m, known := l.models[r.Model]; known {
		r.Slots, r.Resources = m.Version.SlotsOf(m.Launch), engines.Resources{}
		if m.Resources != nil {
			r.Resources = *m.Resources
		}
	}
}

// addressOf returns where the server of a job listens. It is invalid if Ray does not say.
func addressOf(j rayJob, n rayNode) netip.AddrPort {
	host := n.IP
	if agent, err := url.Parse(j.AgentAddress); host == "" && err == nil {
		host = agent.Hostname()
	}
	address, err := netip.ParseAddr(host)
	meta, _ := decodeMetadata(j.Metadata)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(address, uint16(meta.port))
}

// endLocked records that the job of a replica does not run any more. mu is held.
func (l *Launcher) endLocked(r *replica, reason string) {
	l.unwatchLocked(r)
	r.ended = true
	r.Address = netip.AddrPort{}
	if r.draining.IsZero() {
		l.failLocked(r, reason)
	}
}

// failLocked shows a failure and computes when the next job may be submitted. mu is held.
func (l *Launcher) failLocked(r *replica, reason string) {
	if !r.readySince.IsZero() && time.Since(r.readySince) >= l.config.BackOff.Reset {
		r.failures = 0
	}
	pause := time.Duration(0)
	if supervise.SaysInUse(reason) && !r.served && r.collisions < maxPortRetries {
		r.collisions++
	} else {
		r.collisions = 0
		r.failures++
		pause = l.config.BackOff.After(r.failures)
	}
	r.retryAt = time.Now().Add(pause)
	r.Failure, r.NextStart = engines.ClassifyFailure(reason), r.retryAt
	if r.readySince.IsZero() && pause > 0 { // without a pause only the port was lost
		r.FailedStarts++
	}
	r.set(engines.Failed, fmt.Sprintf("%s; next start after a pause of %v", reason, pause))
	l.config.Log.Warn("replica failed", zap.String("replica", r.ID), zap.String("job", r.job), zap.String("reason", reason),
		zap.Duration("next_start", pause))
}

// logMark precedes the end of the log in the message of a job that has failed.
const logMark = ", last available logs"

// describeEnd says why a job has ended. Before the replica served, the end of its log tells why.
// Later the log may hold requests of clients, so only the job is named.
func (r *replica) describeEnd(m desiredModel, j rayJob) string {
	how, rest, _ := strings.Cut(j.Message, logMark)
	how = m.redactor().Text(lastLine(how))
	if r.served {
		return how + "; its log is that of Ray's job " + j.SubmissionID
	}
	_, lines, _ := strings.Cut(rest, "\n")
	return supervise.WithLog(how, lastLines(m, lines))
}

// maxReasonLines is how many lines of a log a reason has.
const maxReasonLines = 3

// lastLines returns the last lines of a log, without those of Ray and without secrets.
func lastLines(m desiredModel, log string) []string {
	var lines []string
	hide := m.redactor()
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "Running entrypoint for job ") || strings.Contains(line, "INFO job_manager.py") {
			continue
		}
		lines = append(lines, hide.Text(line))
	}
	return lines[max(0, len(lines)-maxReasonLines):]
}
