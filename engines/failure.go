package engines

import (
	"cmp"
	"strings"
)

// FailureClass is the kind of fault that ended a replica. Clients may read it; Replica.Reason, with
// lines of the engine's log, is for operators.
type FailureClass string

// The classes. Empty means that the replica has not failed.
const (
	// GPUOutOfMemory: the engine asked for more GPU memory than is free.
	GPUOutOfMemory FailureClass = "gpu_out_of_memory"
	// OutOfMemory: the engine used more memory than it may.
	OutOfMemory FailureClass = "out_of_memory"
	// NoWeights: the weights of the model were not found, or may not be read.
	NoWeights FailureClass = "weights_unavailable"
	// BadArguments: the engine does not accept its command line.
	BadArguments FailureClass = "bad_arguments"
	// NoProgram: the program or image of the engine was not found.
	NoProgram FailureClass = "program_missing"
	// TooSlow: the engine was not ready in time, or made no progress.
	TooSlow FailureClass = "load_timeout"
	// Crashed: none of the above is known.
	Crashed FailureClass = "crashed"
)

// failureSigns are texts in the reasons of failures, in lower case, with the class of each. The
// first that is found counts, so the more telling ones come first.
var failureSigns = []struct {
	text  string
	class FailureClass
}{
	{"weights not fetched", NoWeights},
	{"program of the engine: ", NoProgram},
	{"cuda out of memory", GPUOutOfMemory},
	{"hip out of memory", GPUOutOfMemory},
	{"cudamalloc failed: out of memory", GPUOutOfMemory},
	{"cuda error: out of memory", GPUOutOfMemory},
	{"outofmemoryerror", GPUOutOfMemory},
	{"no available memory for the cache blocks", GPUOutOfMemory},
	{"is less than desired gpu memory utilization", GPUOutOfMemory},
	{"not enough memory. please try to increase --mem-fraction-static", GPUOutOfMemory},
	{"of memory", OutOfMemory},
	{"oomkilled", OutOfMemory},
	{"cannot allocate memory", OutOfMemory},
	{"std::bad_alloc", OutOfMemory},
	{"executable file not found", NoProgram},
	{"command not found", NoProgram},
	{"imagepullbackoff", NoProgram},
	{"errimagepull", NoProgram},
	{"gatedrepo", NoWeights},
	{"repositorynotfound", NoWeights},
	{"repository not found", NoWeights},
	{"not a valid model identifier", NoWeights},
	{"failed to load model", NoWeights},
	{"no such model", NoWeights},
	{"unrecognized arguments", BadArguments},
	{"invalid argument", BadArguments},
	{"unknown argument", BadArguments},
	{"unexpected argument", BadArguments},
	{"error: argument ", BadArguments},
	{"not ready after", TooSlow},
	{"no progress for", TooSlow},
	{"no such file or directory", NoWeights},
}

// ClassifyFailure returns the class of a failure by its reason.
func ClassifyFailure(reason string) FailureClass {
	reason = strings.ToLower(reason)
	for _, s := range failureSigns {
		if strings.Contains(reason, s.text) {
			return s.class
		}
	}
	return Crashed
}

// meanings are what Meaning returns.
var meanings = map[FailureClass]string{
	GPUOutOfMemory: "the engine has too little GPU memory",
	OutOfMemory:    "the engine has too little memory",
	NoWeights:      "the weights cannot be fetched or read",
	BadArguments:   "the engine does not accept its arguments",
	NoProgram:      "the program of the engine is missing",
	TooSlow:        "the engine does not become ready in time",
}

// Meaning says for clients what the class means. It is the end of a sentence that begins with what
// failed.
func (c FailureClass) Meaning() string {
	return cmp.Or(meanings[c], "the engine ends before it is ready")
}
