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

// secretBytes is the length of a token's secret.
const secretBytes = 32

// Token is what a node needs to join for the first time: the hash of the gateway's authority, so that the node knows the gateway, and a
// secret, so that the gateway knows the node. The folder is the server's (ServerConfig.Dir); what is missing there is made. The secret
// stays the same until the file "token" is removed: then this makes another one, which counts at once; nodes that have joined need none.
func Token(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	ca, err := openAuthority(dir)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	secret, err := readOrMake(tokenPath(dir), makeSecret)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	hash := sha256.Sum256(ca.certificate.Raw)
	return base64.RawURLEncoding.EncodeToString(hash[:]) + "." + strings.TrimSpace(string(secret)), nil
}

func tokenPath(dir string) string { return filepath.Join(dir, "token") }

func makeSecret() ([]byte, error) {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // it never fails (crypto/rand)
	return []byte(base64.RawURLEncoding.EncodeToString(secret) + "\n"), nil
}

// token is a parsed token. It prints as nothing.
type token struct {
	authority [sha256.Size]byte
	secret    string
}

// String keeps the secret out of every log.
func (token) String() string { return "[token]" }

func parseToken(text string) (token, error) {
	var t token
	hash, secret, _ := strings.Cut(strings.TrimSpace(text), ".")
	decoded, err := base64.RawURLEncoding.DecodeString(hash)
	raw, errSecret := base64.RawURLEncoding.DecodeString(secret)
	if err != nil || errSecret != nil || len(decoded) != sha256.Size || len(raw) != secretBytes {
		return t, errors.New("this is no token: the gateway prints one by `sluice node token`")
	}
	copy(t.authority[:], decoded)
	t.secret = secret
	return t, nil
}

// rightSecret compares in constant time, with what is in the file now. Where there is none, none is right.
func rightSecret(dir, secret string) bool {
	stored, err := os.ReadFile(tokenPath(dir))
	want := strings.TrimSpace(string(stored))
	if err != nil || want == "" {
		return false
	}
	a, b := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// readOrMake reads a file, or makes it where there is none. Of two that make it at once the second one takes the first one's.
func readOrMake(path string, content func() ([]byte, error)) ([]byte, error) {
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
	defer os.Remove(temporary) //nolint:errcheck // what is left is a file that nobody reads
	if err := os.Link(temporary, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(path)
}

// writeFile replaces a file in one step. Nobody else may read it.
func writeFile(path string, data []byte) error {
	temporary, err := writeTemporary(path, data)
	if err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// writeTemporary writes a file beside path, mode 0600, that is on the disk when it returns.
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
