package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// forgetAfter is how long the gateway lists a node that does not connect.
const forgetAfter = 30 * 24 * time.Hour

// nodeRecord is what the gateway stores about a node in nodes.json.
type nodeRecord struct {
	Name string `json:"name"`
	// Key is the hash of the node's public key. No other key may use the name.
	Key string `json:"key"`
	// LastSeen is when the node last joined, or when it was last known to be connected.
	LastSeen time.Time `json:"seen"`
	// Left says that the node has left: see Node.HasLeft.
	Left bool `json:"left,omitempty"`
	// Replicas are the ids of the replicas that are assigned to the node, or that it still stops.
	// After a restart of the gateway the node is believed no others.
	Replicas []string `json:"replicas"`
}

func recordsPath(dir string) string { return filepath.Join(dir, "nodes.json") }

// readRecords reads the records of nodes. Without a file there are none.
func readRecords(dir string) ([]nodeRecord, error) {
	data, err := os.ReadFile(recordsPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var list []nodeRecord
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s is damaged: remove it, the nodes reconnect by themselves: %w", recordsPath(dir), err)
	}
	return list, nil
}

// isOwned reports whether a machine has joined by the name.
func isOwned(dir, name string) (bool, error) {
	list, err := readRecords(dir)
	return slices.ContainsFunc(list, func(r nodeRecord) bool { return r.Name == name && r.Key != "" }), err
}

// readNodes adds the nodes that have joined in earlier runs. A node that was not seen for
// forgetAfter is not listed, but its name stays its own while its certificate may be valid.
func (s *Server) readNodes() error {
	list, err := readRecords(s.config.Dir)
	for _, r := range list {
		switch away := time.Since(r.LastSeen); {
		case checkName(r.Name) != nil || away > certificateLifetime+forgetAfter:
		case away > forgetAfter:
			s.absent[r.Name] = r
		default:
			n := s.nodeByName(r.Name)
			n.key, n.lastSeen = r.Key, r.LastSeen
			if r.Left {
				n.nodeStopping, n.lost, n.lostAt = true, true, r.LastSeen
			}
			for _, id := range r.Replicas {
				n.known[id] = true
			}
		}
	}
	return err
}

// saveAgainAfter is how long after a failure the records of nodes, or the assignment of a node, are
// written again.
const saveAgainAfter = time.Second

// saveInterval is how often the records are written without a change, for the LastSeen of connected
// nodes. A gateway that is killed writes none.
const saveInterval = time.Hour

// keepSaved writes the records after each change of an assignment, and every saveInterval, until
// ctx ends. It does so in a goroutine of its own, because a slow disk may block. Records that could
// not be written are written again, because without them a later gateway does not believe a node
// what it runs.
func (s *Server) keepSaved(ctx context.Context) {
	tick := time.NewTicker(saveInterval)
	defer tick.Stop()
	for {
		var again <-chan time.Time
		if s.saveFailed.Load() {
			again = time.After(saveAgainAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.unsaved:
		case <-again:
		case <-tick.C:
		}
		s.trySaveNodes()
	}
}

// trySaveNodes writes the records. It logs the first failure of several, and has keepSaved try
// again. It reports whether the records are saved.
func (s *Server) trySaveNodes() bool {
	err := s.saveNodes()
	switch failed := s.saveFailed.Swap(err != nil); {
	case err != nil && !failed:
		s.config.Log.Error("records of nodes not saved, Sluice tries again", zap.Error(err))
		signal(s.unsaved)
	case err == nil && failed:
		s.config.Log.Info("records of nodes saved")
	}
	return err == nil
}

// saveNodes writes the records of all nodes whose key is known.
func (s *Server) saveNodes() error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.mu.Lock()
	list := slices.Collect(maps.Values(s.absent))
	s.mu.Unlock()
	for _, n := range s.Nodes() {
		if k := n.record(); k.Key != "" {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b nodeRecord) int { return strings.Compare(a.Name, b.Name) })
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(recordsPath(s.config.Dir), append(data, '\n'))
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
