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

// identity is what a node has once it has joined.
type identity struct {
	certificate, authority *x509.Certificate
	key                    *ecdsa.PrivateKey
}

// store is the agent's folder below its state directory. Its files are for nobody else: the wish has the environments of models.
type store struct{ dir string }

func (s store) identityPath() string { return filepath.Join(s.dir, "identity.pem") }
func (s store) wishPath() string     { return filepath.Join(s.dir, "wish.json") }
func (s store) addressPath() string  { return filepath.Join(s.dir, "address") }

// identity reads who the node is; nil when it has not joined.
func (s store) identity() (*identity, error) {
	data, err := os.ReadFile(s.identityPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	certificates, key, err := parsePEM(data)
	if err != nil || len(certificates) != 2 {
		return nil, errors.Join(fmt.Errorf("%s is damaged; remove it and join again", s.identityPath()), err)
	}
	return &identity{certificate: certificates[0], authority: certificates[1], key: key}, nil
}

// keep stores what the gateway has answered, and returns it as an identity.
func (s store) keep(c *certificates, key *ecdsa.PrivateKey) (*identity, error) {
	node, err := x509.ParseCertificate(c.Node)
	authority, errAuthority := x509.ParseCertificate(c.Authority)
	if err := errors.Join(err, errAuthority); err != nil {
		return nil, fmt.Errorf("the gateway's answer: %w", err)
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

// fits tells whether the identity is for this name, and of the gateway that the token names, if there is one.
func (i *identity) fits(name string, t *token) bool {
	own, ok := nodeOf(i.certificate)
	return ok && own == name && (t == nil || sha256.Sum256(i.authority.Raw) == t.authority)
}

// wish reads the last one; without a file there is none.
func (s store) wish() (wish, error) {
	var w wish
	data, err := os.ReadFile(s.wishPath())
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	} else if err != nil {
		return w, err
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return wish{}, fmt.Errorf("%s is damaged: %w", s.wishPath(), err)
	}
	return w, nil
}

func (s store) keepWish(w wish) error {
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return writeFile(s.wishPath(), data)
}

// address is the local address from which the gateway is reached. When that is not to be found out it is the one of the last time.
func (s store) address(gateway string) (netip.Addr, error) {
	conn, err := net.Dial("udp", gateway) // sends nothing
	if err != nil {
		if last, errLast := os.ReadFile(s.addressPath()); errLast == nil {
			if address, errLast := netip.ParseAddr(string(last)); errLast == nil {
				return address, nil
			}
		}
		return netip.Addr{}, fmt.Errorf("the address on which replicas are to listen is not known: %w", err)
	}
	defer conn.Close()
	address := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	_ = writeFile(s.addressPath(), []byte(address.String())) // on a full disk it is missed only once there is no network either
	return address, nil
}

// onlyFound are the models with no more replicas than an earlier run has left. A node that starts without its gateway begins nothing.
func onlyFound(models []local.Model, found map[string][]int) []local.Model {
	kept := without(models)
	for i, m := range models {
		wanted := map[int]bool{}
		for _, index := range m.Numbers() {
			wanted[index] = true
		}
		for _, index := range found[m.Name] {
			if wanted[index] {
				kept[i].Indices = append(kept[i].Indices, index)
			}
		}
	}
	return kept
}
