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

// forgetAfter is how long ago a node must have been seen last for a gateway that starts to forget it.
const forgetAfter = 30 * 24 * time.Hour

// knownNode is what is kept of a node over the gateway's restarts.
type knownNode struct {
	Name string `json:"name"`
	// Key is the hash of its public key: nobody else may run under its name.
	Key string `json:"key"`
	// Seen is when it joined, came or went last.
	Seen time.Time `json:"seen"`
}

func (s *Server) nodesPath() string { return filepath.Join(s.config.Dir, "nodes.json") }

func (s *Server) readNodes() error {
	data, err := os.ReadFile(s.nodesPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var list []knownNode
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("%s is damaged, remove it: nodes come back by themselves: %w", s.nodesPath(), err)
	}
	for _, k := range list {
		if checkName(k.Name) == nil && time.Since(k.Seen) < forgetAfter {
			h := s.host(k.Name)
			h.key, h.seen = k.Key, k.Seen
		}
	}
	return nil
}

// saveNodes writes the list of those that have a key.
func (s *Server) saveNodes() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	list := []knownNode{}
	for _, h := range s.Hosts() {
		if k := h.known(); k.Key != "" {
			list = append(list, k)
		}
	}
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(s.nodesPath(), append(data, '\n'))
}

// keyHash tells keys apart.
func keyHash(key *ecdsa.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "" // not a key of ours: parseRequest and the certificate's check let no other pass
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
