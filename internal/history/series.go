package history

import "math"

// Series is one of the numbers that are kept.
type Series int

// The series. The files of the state directory refer to them by their number: a new series is added
// before seriesCount, and formatVersion is raised.
const (
	// RequestsPerSecond and ErrorsPerSecond are of the requests that have ended. An error is an
	// answer of 429 or 5xx, or a stream that broke off and not because of its client.
	RequestsPerSecond Series = iota
	ErrorsPerSecond
	// Queued and Running count requests at the moment of the sample.
	Queued
	Running
	// TTFTp50 and TTFTp95 are times to the first token in milliseconds, of the streams that have
	// ended. InterTokenP50 and InterTokenP95 are times between two tokens. They are measured in a
	// sample of the streams.
	TTFTp50
	TTFTp95
	InterTokenP50
	InterTokenP95
	// TokensPerSecond are output tokens of the requests that have ended.
	TokensPerSecond
	// ReplicasReady and ReplicasWanted count replicas at the moment of the sample.
	ReplicasReady
	ReplicasWanted
	// GPUMemoryBytes is the memory in use of the GPUs of the replicas, whoever uses it.
	GPUMemoryBytes

	seriesCount
)

// names are the names of the series in the API.
var names = [seriesCount]string{
	"requests_per_second", "errors_per_second", "queued", "running", "ttft_p50_ms", "ttft_p95_ms", "inter_token_p50_ms", "inter_token_p95_ms",
	"tokens_per_second", "replicas_ready", "replicas_wanted", "gpu_memory_bytes",
}

// String returns the name of the series in the API.
func (s Series) String() string { return names[s] }

// Names returns the names of all series in the API, in the order of Values.
func Names() []string { return names[:] }

// Values are the values of all series at one moment. NaN stands for a value that is not known.
type Values [seriesCount]float64

// None returns Values of which none is known.
func None() Values {
	var v Values
	for i := range v {
		v[i] = math.NaN()
	}
	return v
}

// Sample is what is kept of one moment.
type Sample struct {
	// Total is the sum of all models.
	Total Values
	// Models are the values by the name of the model.
	Models map[string]Values
}
