package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// newResource validates a message with the constraints of its definition, as Envoy does, and packs
// it.
func newResource(name string, m validatedMessage) (*Resource, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, err
	}
	packed, err := pack(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(packed.Value)
	return &Resource{Name: name, Version: hex.EncodeToString(sum[:8]), Message: m, packed: packed}, nil
}

// validatedMessage is a generated message with a validation method.
type validatedMessage interface {
	proto.Message
	ValidateAll() error
}

// pack packs a message into stable bytes.
func pack(m proto.Message) (*anypb.Any, error) {
	packed := new(anypb.Any)
	err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true})
	return packed, err
}

// mustPack packs a message without text from outside. Packing fails only for text that is not
// UTF-8.
func mustPack(m proto.Message) *anypb.Any {
	packed, err := pack(m)
	if err != nil {
		panic(fmt.Sprintf("xds: packing %T: %v", m, err))
	}
	return packed
}

// extension returns an extension with its configuration.
func extension(name string, m proto.Message) *core.TypedExtensionConfig {
	return &core.TypedExtensionConfig{Name: name, TypedConfig: mustPack(m)}
}
