package join

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// secretBytes is the length of a token's secret in bytes.
const secretBytes = 32

// defaultTokenLifetime is TokenRequest.Expires if the request does not set it.
const defaultTokenLifetime = 24 * time.Hour

// TokenRequest says what a token is for.
type TokenRequest struct {
	// Node is the name of the node that the token admits.
	Node string
	// Expires is how long the token is valid. 0 means 24 h.
	Expires time.Duration
	// Replace lets the token take the name from the machine that has joined by it.
	Replace bool
}

// tokenRecord is what the gateway stores about a token, in a file whose name is the hash of the
// token's secret. The secret itself is stored nowhere.
type tokenRecord struct {
	Node    string    `json:"node"`
	Expires time.Time `json:"expires"`
	// Replace is false from the moment at which the name was given to UsedBy, and this is stored.
	Replace bool `json:"replace,omitempty"`
	// UsedBy is the hash of the key of the machine that has used the token. Only this machine may
	// use it again, because the answer of the gateway may have been lost.
	UsedBy string `json:"used_by,omitempty"`
}

// Token makes a token by which one machine may join by a name, once. dir is ServerConfig.Dir; Token
// creates what is missing there. It fails for a name that a machine has joined by, unless the
// request says Replace.
//
// The token consists of a hash and a secret. By the hash of the gateway's authority the node
// recognises the gateway. By the secret the gateway accepts the node. A node that has joined needs
// no token: it has a key and a certificate of its own.
func Token(dir string, r TokenRequest) (string, error) {
	if err := checkName(r.Node); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	if err := os.MkdirAll(tokensPath(dir), 0o700); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	ca, err := openAuthority(dir)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	if owned, err := isOwned(dir, r.Node); err != nil {
		return "", fmt.Errorf("token: %w", err)
	} else if owned && !r.Replace {
		return "", fmt.Errorf("token: a machine has joined as %s and needs no further token: "+
			"add --replace to give its name to another machine", r.Node)
	}
	removeExpiredTokens(dir, time.Now())
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // crypto/rand never fails.
	secret := base64.RawURLEncoding.EncodeToString(raw)
	setDefault(&r.Expires, defaultTokenLifetime)
	record := tokenRecord{Node: r.Node, Expires: time.Now().Add(r.Expires).UTC(), Replace: r.Replace}
	if err := record.save(dir, secret); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	hash := sha256.Sum256(ca.certificate.Raw)
	return base64.RawURLEncoding.EncodeToString(hash[:]) + "." + secret, nil
}

func tokensPath(dir string) string { return filepath.Join(dir, "tokens") }

// tokenPath returns the path of the record of a token. The hash in it makes the look-up safe
// against guessing by time.
func tokenPath(dir, secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return filepath.Join(tokensPath(dir), hex.EncodeToString(sum[:])+".json")
}

func (r tokenRecord) save(dir, secret string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeFile(tokenPath(dir, secret), data)
}

// readToken reads the record of a token. The bool is false for a secret that is unknown or has
// expired, and for a record that cannot be read.
func readToken(dir, secret string, now time.Time) (tokenRecord, bool) {
	var r tokenRecord
	data, err := os.ReadFile(tokenPath(dir, secret))
	if err != nil || json.Unmarshal(data, &r) != nil {
		return r, false
	}
	return r, now.Before(r.Expires)
}

// removeExpiredTokens removes the records of tokens that have expired. Errors are ignored: such a
// token is refused anyway.
func removeExpiredTokens(dir string, now time.Time) {
	files, _ := filepath.Glob(filepath.Join(tokensPath(dir), "*.json"))
	for _, file := range files {
		var r tokenRecord
		if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &r) == nil && !now.Before(r.Expires) {
			_ = os.Remove(file)
		}
	}
}

// token is a parsed join token.
type token struct {
	authority [sha256.Size]byte
	secret    string
}

// parseToken parses what Token returned. Its error never contains the text, which may be a secret.
func parseToken(text string) (token, error) {
	var t token
	hash, secret, _ := strings.Cut(strings.TrimSpace(text), ".")
	decoded, err := base64.RawURLEncoding.DecodeString(hash)
	raw, errSecret := base64.RawURLEncoding.DecodeString(secret)
	if err != nil || errSecret != nil || len(decoded) != sha256.Size || len(raw) != secretBytes {
		return t, errors.New("the join token is malformed: `sluice node token NAME` makes a valid one at the gateway")
	}
	copy(t.authority[:], decoded)
	t.secret = secret
	return t, nil
}

// readOrCreate reads a file and creates it with content if it is missing. If two processes create
// it at the same time, both get the content of the first.
func readOrCreate(path string, content func() ([]byte, error)) ([]byte, error) {
	data, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	made, err := content()
	if err != nil {
		return nil, err
	}
	temporary, err := writeTemporary(path, made)
	if err != nil {
		return nil, err
	}
	defer os.Remove(temporary) //nolint:errcheck // a file that could not be removed is ignored
	if err := os.Link(temporary, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(path)
}

// writeFile replaces a file atomically. Its mode is 0600.
func writeFile(path string, data []byte) error {
	temporary, err := writeTemporary(path, data)
	if err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// writeTemporary writes a file with mode 0600 in the folder of path and syncs it to disk. It
// returns the file's name.
func writeTemporary(path string, data []byte) (string, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return "", err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return "", err
	}
	return file.Name(), nil
}
