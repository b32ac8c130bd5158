package config

// checkStream checks how a model's responses are delivered.
func (k *checker) checkStream(at path, m *Model) {
	s := &m.Stream
	k.checkShare(at.field("sample"), s.Sample)
	if s.Mode != StreamNative {
		return
	}
	for _, field := range managedFields() {
		k.rejectSet(at.field(field), "mode: native")
	}
}

// managedFields are the fields of Stream that only managed streams use.
func managedFields() []string {
	return []string{"heartbeat", "heartbeat_as", "resume", "ttft_timeout", "stall_timeout", "inject_usage", "sample"}
}

// checkStreamMode rejects mode native for a model whose replicas speak gRPC, because Sluice has to
// translate its requests.
func (k *checker) checkStreamMode(at path, m *Model) {
	mode := at.field("stream").field("mode")
	if m.Stream.Mode == StreamNative && m.Protocol == ProtocolGRPC && k.valid(mode) {
		k.faultf(mode, "must be managed or auto with protocol: grpc, is native: Sluice has to translate the requests")
	}
}
