package config

import "time"

// ColdStart says how long requests wait for the first replica of a model, and how long an engine
// may load. The two are apart: a request that has waited long enough is refused while the engine
// goes on loading.
type ColdStart struct {
	// Wait is how long a request waits for the first replica. After it the client gets 503
	// cold_start_timeout with a Retry-After, and the start goes on. 0s answers at once. At most
	// 55m. Default 10m, or cold_start_timeout if that is set.
	Wait time.Duration `yaml:"wait" default:"10m" min:"0s"`
	// LoadTimeout is how long a replica may take from its start until it is ready. A slower one is
	// stopped and started again. Default 30m.
	LoadTimeout time.Duration `yaml:"load_timeout" default:"30m" min:"1s"`
	// Stall is how long a replica on a node may load without a sign of progress. Such a sign is a
	// new line in its log, or data that it has read or written. The replica is then stopped and
	// started again. On Kubernetes and Ray only load_timeout counts. Default 5m.
	Stall time.Duration `yaml:"stall" default:"5m" min:"1s"`
}

// checkColdStart checks the times of a cold start, and takes the wait from cold_start_timeout if
// that is set.
func (k *checker) checkColdStart(at path, m *Model) {
	short, wait := at.field("cold_start_timeout"), at.field("cold_start").field("wait")
	if k.isSet(short) {
		if k.isSet(wait) && k.valid(short) {
			k.faultf(short, "is another name of cold_start.wait, which is set too: remove one of them")
		}
		m.ColdStart.Wait = m.ColdStartTimeout
		wait = short
	}
	k.checkWait(wait, m.ColdStart.Wait)
}
