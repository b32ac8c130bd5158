package join

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/sluice-gateway/sluice/engines/local"
)

// identity is the certificate and key that a node has after it has joined.
type identity struct {
	certificate, authority *x509.Certificate
	key                    *ecdsa.PrivateKey
}

// agentStore is the folder "node" in an agent's state directory. Its files have mode 0600, because
// assignments contain the environments of models.
type agentStore struct{ dir string }

func (s agentStore) identityPath() string   { return filepath.Join(s.dir, "identity.pem") }
func (s agentStore) assignmentPath() string { return filepath.Join(s.dir, "wish.json") }
func (s agentStore) addressPath() string    { return filepath.Join(s.dir, "address") }

// identity reads the saved identity. It returns nil if the node has not joined.
func (s agentStore) identity() (*identity, error) {
	data, err := os.ReadFile(s.identityPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	certificates, key, err := parsePEM(data)
	if err != nil || len(certificates) != 2 {
		return nil, errors.Join(fmt.Errorf("%s is damaged: remove it and join again", s.identityPath()), err)
	}
	return &identity{certificate: certificates[0], authority: certificates[1], key: key}, nil
}

// saveIdentity saves the certificates that the gateway issued for the key, and returns them as an
// identity.
func (s agentStore) saveIdentity(c *certificates, key *ecdsa.PrivateKey) (*identity, error) {
	node, err := x509.ParseCertificate(c.Node)
	authority, errAuthority := x509.ParseCertificate(c.Authority)
	if err := errors.Join(err, errAuthority); err != nil {
		return nil, fmt.Errorf("the gateway's certificates are malformed: %w", err)
	}
	file, err := formatPEM(key, c.Node, c.Authority)
	if err != nil {
		return nil, err
	}
	if err := writeFile(s.identityPath(), file); err != nil {
		return nil, err
	}
	return &identity{certificate: node, authority: authority, key: key}, nil
}

// matches reports whether the identity has this name and, if t is not nil, was issued by the
// gateway that t names.
func (i *identity) matches(name string, t *token) bool {
	own, ok := nodeNameOf(i.certificate)
	return ok && own == name && (t == nil || sha256.Sum256(i.authority.Raw) == t.authority)
}

// assignment reads the saved assignment. It returns an empty assignment if none was saved.
func (s agentStore) assignment() (assignment, error) {
	var saved assignment
	data, err := os.ReadFile(s.assignmentPath())
	if errors.Is(err, fs.ErrNotExist) {
		return saved, nil
	} else if err != nil {
		return saved, err
	}
	if err := json.Unmarshal(data, &saved); err != nil {
		return assignment{}, fmt.Errorf("%s is damaged: %w", s.assignmentPath(), err)
	}
	return saved, nil
}

func (s agentStore) saveAssignment(saved assignment) error {
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return writeFile(s.assignmentPath(), data)
}

// localAddress returns the local address from which the gateway is reached. If the network is down,
// it returns the address that the last successful call saved.
func (s agentStore) localAddress(gateway string) (netip.Addr, error) {
	conn, err := net.Dial("udp", gateway) // A UDP socket sends nothing when it connects.
	if err != nil {
		if last, errLast := os.ReadFile(s.addressPath()); errLast == nil {
			if address, errLast := netip.ParseAddr(string(last)); errLast == nil {
				return address, nil
			}
		}
		return netip.Addr{}, fmt.Errorf("the address for replicas is unknown (set it with --address): %w", err)
	}
	defer conn.Close()
	address := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	// A failure to save is harmless: the file is read only while there is no network.
	_ = writeFile(s.addressPath(), []byte(address.String()))
	return address, nil
}

// onlyRunning returns the models reduced to the assigned replicas that run already. running holds
// the indices by model. A node that starts without its gateway starts no replica.
func onlyRunning(models []local.Model, running map[string][]int) []local.Model {
	kept := withoutReplicas(models)
	for i, m := range models {
		wanted := map[int]bool{}
		for _, index := range m.Numbers() {
			wanted[index] = true
		}
		for _, index := range running[m.Name] {
			if wanted[index] {
				kept[i].Indices = append(kept[i].Indices, index)
			}
		}
	}
	return kept
}
