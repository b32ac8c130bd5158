package join

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// secretBytes is the length of a token's secret in bytes.
const secretBytes = 32

// Token returns the token that a node needs to join. dir is ServerConfig.Dir; Token creates what is
// missing there.
//
// The token consists of a hash and a secret. By the hash of the gateway's authority the node
// recognises the gateway. By the secret the gateway accepts the node. The secret stays valid until
// the file "token" is removed. The next call then creates another secret, which is valid at once.
// Nodes that have joined need no token.
func Token(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	ca, err := openAuthority(dir)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	secret, err := readOrCreate(tokenPath(dir), makeSecret)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	hash := sha256.Sum256(ca.certificate.Raw)
	return base64.RawURLEncoding.EncodeToString(hash[:]) + "." + strings.TrimSpace(string(secret)), nil
}

func tokenPath(dir string) string { return filepath.Join(dir, "token") }

func makeSecret() ([]byte, error) {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // crypto/rand never fails.
	return []byte(base64.RawURLEncoding.EncodeToString(secret) + "\n"), nil
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
		return t, errors.New("the join token is malformed: `sluice node token` prints a valid one at the gateway")
	}
	copy(t.authority[:], decoded)
	t.secret = secret
	return t, nil
}

// isSecretValid compares the secret with the file "token" in constant time. If the file is missing
// or empty, every secret is wrong.
func isSecretValid(dir, secret string) bool {
	stored, err := os.ReadFile(tokenPath(dir))
	want := strings.TrimSpace(string(stored))
	if err != nil || want == "" {
		return false
	}
	a, b := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
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
	defer os.Remove(temporary) // A file that could not be removed is ignored.
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
