package join

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// forgetAfter is how long the gateway keeps the record of a node that does not connect.
const forgetAfter = 30 * 24 * time.Hour

// nodeRecord is what the gateway stores about a node in nodes.json.
type nodeRecord struct {
	Name string `json:"name"`
	// Key is the hash of the node's public key. No other key may use the name.
	Key string `json:"key"`
	// LastSeen is when the node last joined, connected or disconnected.
	LastSeen time.Time `json:"seen"`
}

func (s *Server) nodesPath() string { return filepath.Join(s.config.Dir, "nodes.json") }

func (s *Server) readNodes() error {
	data, err := os.ReadFile(s.nodesPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var list []nodeRecord
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("%s is damaged: remove it, the nodes reconnect by themselves: %w", s.nodesPath(), err)
	}
	for _, k := range list {
		if checkName(k.Name) == nil && time.Since(k.LastSeen) < forgetAfter {
			n := s.nodeByName(k.Name)
			n.key, n.lastSeen = k.Key, k.LastSeen
		}
	}
	return nil
}

// saveNodes writes the records of all nodes whose key is known.
func (s *Server) saveNodes() error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	list := []nodeRecord{}
	for _, n := range s.Nodes() {
		if k := n.record(); k.Key != "" {
			list = append(list, k)
		}
	}
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(s.nodesPath(), append(data, '\n'))
}

// keyHash returns the SHA-256 of a public key in hexadecimal digits.
func keyHash(key *ecdsa.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		// This cannot happen: parseSigningRequest and the TLS handshake accept only keys that can
		// be encoded.
		return ""
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
