package gateway

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/seal"
)

// operatorFile is the file of operatorState in the state directory.
const operatorFile = "operator.json"

// operatorState is what an operator has set at run time, as it is kept over restarts.
type operatorState struct {
	// DrainedModels and DrainedReplicas are sorted.
	DrainedModels   []string `json:"drained_models"`
	DrainedReplicas []string `json:"drained_replicas"`
	// Scales are the bounds of models, by name. They hold for the file with the hash File alone.
	Scales map[string]admin.Bounds `json:"scales"`
	File   string                  `json:"file"`
}

func (s operatorState) empty() bool {
	return len(s.DrainedModels) == 0 && len(s.DrainedReplicas) == 0 && len(s.Scales) == 0
}

// saveAgainAfter is how long after a failure the state is written again.
const saveAgainAfter = time.Second

// save writes what is in force to the state directory. An operator must be able to drain while the
// disk is full, so a failure is only logged, the first of several, and run calls save again.
func (o *operator) save() {
	o.saving.Lock()
	defer o.saving.Unlock()
	models, replicas := o.dispatcher.Drained()
	data, err := json.Marshal(operatorState{slices.Sorted(maps.Keys(models)), slices.Sorted(maps.Keys(replicas)),
		o.launchers.currentOverrides(), o.launchers.config().Hash})
	if err == nil {
		err = o.dir.WriteFile(operatorFile, append(seal.Add(data), '\n'))
	}
	switch failed := o.saveFailed.Swap(err != nil); {
	case err != nil && !failed:
		o.log.Error("drains and scales not stored, Sluice tries again: until then they end with this process", zap.Error(err))
		select {
		case o.unsaved <- struct{}{}:
		default:
		}
	case err == nil && failed:
		o.log.Info("drains and scales stored")
	}
}

// restore puts in force what save has written. It must be called before the first configuration is
// put in force. A damaged file is renamed, and nothing is restored.
func (o *operator) restore() {
	path := filepath.Join(o.dir.Path(), operatorFile)
	s, err := readOperatorState(path)
	if err != nil {
		o.log.Error("drains and scales of the earlier run not read", zap.Error(errors.Join(err, os.Rename(path, path+".bad"))))
		return
	}
	if s.File != o.launchers.config().Hash && len(s.Scales) > 0 {
		o.log.Warn("scales of the earlier run are dropped, because the file has changed",
			zap.Strings("scaled_models", slices.Sorted(maps.Keys(s.Scales))))
		s.Scales = nil
		defer o.save() // else they would come back with the file of before
	}
	if s.empty() {
		return
	}
	o.dispatcher.SetDrained(setOf(s.DrainedModels), setOf(s.DrainedReplicas))
	o.launchers.setOverrides(s.Scales)
	o.log.Warn("drains and scales of the earlier run are in force", zap.Strings("drained_models", s.DrainedModels),
		zap.Strings("drained_replicas", s.DrainedReplicas), zap.Strings("scaled_models", slices.Sorted(maps.Keys(s.Scales))))
}

// readOperatorState reads the file of operatorState. A missing file is an empty state.
func readOperatorState(path string) (s operatorState, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = seal.Unmarshal(data, &s)
	}
	return s, err
}

// setOf returns the members as a set; nil if there is none.
func setOf(members []string) map[string]bool {
	var set map[string]bool
	for _, m := range members {
		if set == nil {
			set = map[string]bool{}
		}
		set[m] = true
	}
	return set
}
