package config

// unsupported lists, by path pattern, the fields of the file format that this version refuses
// because nothing implements them yet. A row with = is a value of a known field that is refused.
// The text of a row names what is missing. To support a row, delete it and add the field to its
// struct or the value to its tag.
func unsupported() map[string]string {
	return map[string]string{
		"envoy_admin": "an admin listener of Envoy's own on TCP",
	}
}

// notSupported returns the message of the fault about an unsupported field or value.
func notSupported(what string) string {
	return "not supported by this version (" + what + "): remove it"
}
