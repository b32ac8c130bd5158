package config

// later lists what the design of the file has and this version does not do yet. A field here is one that no struct has; an entry with
// = is a value that a known field may not have yet. Each names what is missing. To support something, delete its row and add
// its field or value.
func later() map[string]string {
	return map[string]string{
		"control":     "a control listener on TCP with mTLS",
		"envoy_admin": "an admin listener of Envoy's own on TCP",
		"nodes":       "further hosts",

		"engines[].versions[].kubernetes": "replicas on Kubernetes",

		"models[].launcher=kubernetes":  "replicas on Kubernetes",
		"models[].cluster":              "replicas elsewhere than on this host",
		"models[].unhealthy_on":         "a choice of what makes a replica unhealthy",
		"models[].stream.mode=managed":  "managed streams",
		"models[].stream.heartbeat":     "managed streams",
		"models[].stream.resume":        "managed streams",
		"models[].stream.ttft_timeout":  "managed streams",
		"models[].stream.stall_timeout": "managed streams",
		"models[].stream.inject_usage":  "usage of its own",
	}
}

// notYet is the message for something that comes later.
func notYet(what string) string { return "not supported by this version yet (" + what + ")" }
