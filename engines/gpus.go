package engines

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// GPUMemoryHeadroom is the part of its share of a GPU that an engine is told to use. The rest is
// for what engines allocate besides: contexts of CUDA, graphs, buffers of communication.
const GPUMemoryHeadroom = 0.9

// GPUUse says by which variables an engine is told its GPUs. The zero value is for engines that
// find out by themselves, or cannot be told.
type GPUUse struct {
	// Memory is the variable of the share of each GPU's memory that a replica may use.
	Memory string `json:",omitempty"`
	// Parallel are the variables whose product is the number of a replica's GPUs, each with its
	// other names. The first gets what the others leave, unless the model sets it.
	Parallel [][]string `json:",omitempty"`
	// Copies are further factors of the product, unless a variable of Overlap is set: with it,
	// copies share GPUs.
	Copies [][]string `json:",omitempty"`
	// Overlap: see Copies.
	Overlap []string `json:",omitempty"`
	// Elsewhere are variables that say that a replica has GPUs of other nodes. With one of them
	// nothing is set and nothing is checked.
	Elsewhere []string `json:",omitempty"`
}

// withGPUs returns the variables with those by which the engine is told its GPUs: its share of the
// memory, and the parallelism over all devices. What the model sets stays.
func (v Version) withGPUs(l Launch, variables map[string]any) map[string]any {
	g := v.GPU
	if l.GPUs == 0 || isSet(variables, g.Elsewhere) {
		return variables
	}
	all := maps.Clone(variables)
	if g.Memory != "" && l.GPUShare > 0 && l.GPUShare < 1 && all[g.Memory] == nil {
		all[g.Memory] = math.Floor(l.GPUShare*GPUMemoryHeadroom*1000) / 1000
	}
	if len(g.Parallel) > 0 && !isSet(all, g.Parallel[0]) {
		if _, others := g.product(all); l.GPUs%others == 0 {
			all[g.Parallel[0][0]] = l.GPUs / others
		}
	}
	return all
}

// product returns the names of the parallel sizes that are set, and their product, which is at
// least 1.
func (g GPUUse) product(variables map[string]any) (names []string, product int) {
	product = 1
	factors := g.Parallel
	if !isSet(variables, g.Overlap) {
		factors = slices.Concat(g.Parallel, g.Copies)
	}
	for _, group := range factors {
		for _, name := range group {
			if n, ok := positive(variables[name]); ok {
				names, product = append(names, name), product*n
				break
			}
		}
	}
	return names, product
}

// flags returns the flags of the variables. As arguments nobody would check them.
func (g GPUUse) flags() []string {
	var flags []string
	for _, group := range slices.Concat([][]string{{g.Memory}}, g.Parallel, g.Copies) {
		for _, name := range group {
			if name != "" {
				flags = append(flags, flagOf(name))
			}
		}
	}
	return flags
}

// isSet reports whether one of the names has a value other than false.
func isSet(variables map[string]any, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		value, ok := variables[name]
		return ok && value != nil && value != false
	})
}

// CheckGPUs checks the variables of a model against the GPUs of its replicas: their number, and the
// share of one GPU, or 0 for whole GPUs. Without GPUs there is nothing to check.
func (v Version) CheckGPUs(gpus int, share float64, given map[string]any) []Fault {
	g := v.GPU
	if gpus == 0 || isSet(given, g.Elsewhere) {
		return nil
	}
	var faults []Fault
	if memory, ok := asFloat(given[g.Memory]); ok && share > 0 && share < 1 && memory > share {
		faults = append(faults, Fault{Path: []string{g.Memory}, Reason: fmt.Sprintf(
			"must be at most %v, the share of the GPU in resources.gpu, is %v: replicas that share the GPU would have too little memory", share, memory)})
	}
	names, product := g.product(given)
	if len(names) == 0 {
		return faults
	}
	exact := isSet(given, g.Parallel[0])
	if exact && product == gpus || !exact && gpus%product == 0 {
		return faults
	}
	must := fmt.Sprintf("must be %d", gpus)
	if !exact {
		must = fmt.Sprintf("must divide %d", gpus)
	}
	return append(faults, Fault{Path: names[:1], Reason: fmt.Sprintf("%s is %d and %s, the GPUs of a replica in resources.gpu",
		strings.Join(names, " × "), product, must)})
}

// asFloat returns a number as decoders of YAML and JSON return it, and whether it is one.
func asFloat(value any) (float64, bool) {
	switch v := value.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}
