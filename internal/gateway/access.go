package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
)

// adminAccess returns who may use the admin listener. It is nil while everybody who reaches the
// listener may.
func adminAccess(c *config.Config) *admin.Access {
	a := c.AdminAuth
	if a == nil {
		return nil
	}
	access := &admin.Access{}
	for _, t := range a.Tokens {
		token := admin.Token{Name: t.Name, Role: admin.Role(t.Role)}
		// The check of the configuration guarantees 64 hex digits.
		_, _ = hex.Decode(token.Hash[:], []byte(strings.TrimPrefix(t.Hash, "sha256:")))
		access.Tokens = append(access.Tokens, token)
	}
	if h := a.TrustedHeader; h != nil {
		access.Header = &admin.TrustedHeader{Name: h.Name, From: h.Proxies, Role: admin.Role(h.Role), Operators: h.Operators}
	}
	return access
}

// prepareAccess prepares who may use the admin listener under c. A file without admin_auth has an
// admin listener on loopback. While the listener of this process is not, which only a restart
// changes, the access before stays in force.
func (g *Gateway) prepareAccess(c *config.Config) (func() error, error) {
	access := adminAccess(c)
	if access == nil && !onLoopback(g.options.Config.Admin) {
		return done(func() {}), nil
	}
	return done(func() { g.access.Store(access) }), nil
}

// onLoopback reports whether only this machine reaches a listener.
func onLoopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().IsLoopback()
}

// sessionKey returns the key that signs the logins of the page. It is kept in the state directory,
// so that a restart ends no login. If it cannot be kept, it is nil, and logins end with this
// process.
func (g *Gateway) sessionKey() []byte {
	path := filepath.Join(g.dir.Path(), "admin-session.key")
	if key, err := os.ReadFile(path); err == nil && len(key) == sha256.Size {
		return key
	}
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // crypto/rand never fails
	if err := os.WriteFile(path, key, 0o600); err != nil {
		g.log.Warn("key of admin logins not kept, logins end with this process", zap.Error(err))
		return nil
	}
	return key
}
