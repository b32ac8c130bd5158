package authz

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// keyPrefix lets secret scanners and people recognise a key of ours.
const keyPrefix = "sk-sluice-"

// Key is a freshly made API key.
type Key struct {
	// Secret is what the client sends; it is shown once and stored nowhere.
	Secret string
	// ID is the public part of the secret, to talk about a key without showing it.
	ID string
	// Hash is what the file holds.
	Hash string
}

var keyText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewKey makes a key: prefix, 40-bit id, 256-bit secret, CRC-32 of all before it, so that a mistyped or cut key can be told
// from a revoked one (see WellFormed).
func NewKey() Key {
	random := make([]byte, 5+32)
	rand.Read(random) // never fails: crypto/rand ends the program rather than return weak bytes
	id := keyText.EncodeToString(random[:5])
	text := keyPrefix + id + "-" + keyText.EncodeToString(random[5:])
	text += checksum(text)
	return Key{Secret: text, ID: id, Hash: HashKey(text)}
}

// HashKey is the form in which the file holds a key: "sha256:" and the hex digits of SHA-256 of the key's text. Any text may
// serve as a key, not only those of NewKey.
func HashKey(secret string) string {
	d := sha256.Sum256([]byte(secret))
	return hashPrefix + hex.EncodeToString(d[:])
}

// WellFormed says whether the text is a whole key as NewKey makes them.
func WellFormed(secret string) bool {
	const sum = 7 // base32 of four bytes
	if !strings.HasPrefix(secret, keyPrefix) || len(secret) <= len(keyPrefix)+sum {
		return false
	}
	text, tail := secret[:len(secret)-sum], secret[len(secret)-sum:]
	return checksum(text) == tail
}

func checksum(text string) string {
	return keyText.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text))))
}
