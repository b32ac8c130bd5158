package local

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/process"
)

// Found returns the numbers of the replicas that an earlier run has left, by model and in ascending
// order.
func (l *Launcher) Found() map[string][]int {
	found := map[string][]int{}
	for _, record := range l.config.Dir.Records() {
		if record.Purpose != purpose {
			continue
		}
		if index, err := strconv.Atoi(record.Meta[metaIndex]); err == nil {
			model := record.Meta[metaModel]
			found[model] = append(found[model], index)
		}
	}
	for _, indices := range found {
		slices.Sort(indices)
	}
	return found
}

// Adopt takes over the live replicas of an earlier run and reports them. It probes each replica
// once, so that the fleet's first snapshot shows their states. A replica that models does not
// contain is reported as draining and stops after Run is called. Adopt implies Set, and is called
// before Run.
func (l *Launcher) Adopt(models []Model) {
	l.Set(models)
	byName := map[string]Model{}
	for _, m := range models {
		byName[m.Name] = m
	}
	var probing sync.WaitGroup
	var adopted []*runner
	cgroups := map[string]bool{}
	for _, record := range l.config.Dir.Records() {
		if record.Cgroup != "" {
			cgroups[record.Cgroup] = true
		}
		if record.Purpose != purpose {
			continue
		}
		r, err := l.adopt(record)
		if err != nil {
			l.config.Log.Error("adoption of a replica failed", zap.String("process", record.Name), zap.Error(err))
			continue
		}
		if m, ok := byName[r.replica.Model]; ok {
			r.model.Store(&m)
			r.replica.Slots = m.Version.SlotsOf(m.Launch)
			r.process.SetRedactor(m.redactor())
			probing.Go(r.probeAdopted)
		}
		adopted = append(adopted, r)
	}
	probing.Wait()
	for _, r := range adopted {
		l.table.add(r, r.process.Record().Meta[metaFingerprint]).allocated = true
		if r.readySince.IsZero() {
			l.startLocks.tryLock(r.id, r.replica.Devices())
		}
	}
	l.limits.removeStale(cgroups)
	wanted := l.desired()
	l.table.reconcile(wanted, nil)
	l.table.publish(wanted)
}

// adopt makes a runner from a record. It stops a process whose record lacks what a replica needs.
func (l *Launcher) adopt(record process.Record) (*runner, error) {
	p, ok := l.config.Dir.Adopt(record.Name)
	if !ok {
		return nil, errors.New("its process has just ended")
	}
	meta := record.Meta
	model := meta[metaModel]
	index, err := strconv.Atoi(meta[metaIndex])
	address, errAddress := netip.ParseAddrPort(meta[metaAddress])
	if err = errors.Join(err, errAddress); err == nil && record.Name != purpose+"/"+engines.ReplicaID(model, index) {
		err = fmt.Errorf("it is the record of %s", engines.ReplicaID(model, index))
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop(context.Background(), stopGrace))
	}
	drain, _ := time.ParseDuration(meta[metaDrain]) // an older record has no drain timeout
	r := l.newRunner(Model{Model: engines.Model{Name: model}, DrainTimeout: drain}, index)
	r.process, r.served, r.cgroup = p, meta[metaReady] == "true", record.Cgroup
	restarts, _ := strconv.Atoi(meta[metaRestarts])
	r.starts = restarts + 1
	r.replica.PID, r.replica.Address, r.replica.Restarts = p.PID(), address, restarts
	r.replica.GPUs, r.replica.Resources = meta[metaGPUs], resourcesOf(meta[metaResources])
	l.ports.keep(address.Port())
	return r, nil
}

// probeAdopted probes whether the engine is ready. An engine that was ready before and does not
// answer in time counts as busy.
func (r *runner) probeAdopted() {
	m := r.model.Load()
	got, text := r.launcher.prober.Probe(context.Background(), r.replica.Address, m.Version.Ready.Path)
	if got == supervise.Healthy || got == supervise.Busy && r.served {
		r.replica.State, r.readySince, r.served = engines.Ready, time.Now(), true
		return
	}
	r.replica.State, r.replica.Reason = engines.Starting, text
}
