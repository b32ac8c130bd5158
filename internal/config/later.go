package config

// later lists what the design of the file has and this version does not do yet. A field here is one that no struct has; an entry with
// = is a value that a known field may not have yet. Each names what is missing. To support something, delete its row and add
// its field or value.
func later() map[string]string {
	return map[string]string{
		"envoy_admin": "an admin listener of Envoy's own on TCP",
	}
}

// notYet is the message for something that comes later.
func notYet(what string) string { return "not supported by this version yet (" + what + ")" }
