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

// keyPrefix begins every key that NewKey makes. Secret scanners and people recognise a key by it.
const keyPrefix = "sk-sluice-"

// Key is a new API key.
type Key struct {
	// Secret is the text that a client sends. It is shown once and stored nowhere.
	Secret string
	// ID is a part of the secret that is not confidential. It names the key in conversations and
	// lists.
	ID string
	// Hash is the form of the key in the configuration file, see HashKey.
	Hash string
}

// keyText is base32 without padding in lower case.
var keyText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewKey makes a key. Its text is keyPrefix, an id of 40 bits, a secret of 256 bits and a CRC-32 of
// everything before it. By the checksum, a mistyped or truncated key can be told from a revoked
// one.
func NewKey() Key {
	random := make([]byte, 5+32)
	// rand.Read never fails: crypto/rand ends the program rather than return weak bytes.
	rand.Read(random)
	id := keyText.EncodeToString(random[:5])
	text := keyPrefix + id + "-" + keyText.EncodeToString(random[5:])
	text += checksum(text)
	return Key{Secret: text, ID: id, Hash: HashKey(text)}
}

// HashKey returns the form of a key in the configuration file: "sha256:" and the hex digits of the
// SHA-256 of the key's text. Any text can be a key, not only the output of NewKey.
func HashKey(secret string) string {
	d := sha256.Sum256([]byte(secret))
	return hashPrefix + hex.EncodeToString(d[:])
}

// checksum returns the CRC-32 of text in the alphabet of keys: seven characters.
func checksum(text string) string {
	return keyText.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text))))
}

// isWhole reports whether a text is a key that NewKey can have made: its checksum is right.
func isWhole(text string) bool {
	at := len(text) - len(checksum(""))
	return at > 0 && strings.HasPrefix(text, keyPrefix) && checksum(text[:at]) == text[at:]
}

// FileKeyID returns the id of a key of the configuration file: the first hex digits of its hash. It
// stays the same as long as the key does. A malformed hash gives an id too.
func FileKeyID(hash string) string {
	digits := strings.TrimPrefix(hash, hashPrefix)
	return digits[:min(len(digits), fileIDDigits)]
}

// fileIDDigits is the number of hex digits in the id of a key of the file.
const fileIDDigits = 8

// KeyName names a key in lists, in the ledger and in records of requests, by its tenant and its id.
func KeyName(tenant, id string) string { return tenant + "/" + id }

// KeyPrefix returns how the key with an id begins. It is not confidential.
func KeyPrefix(id string) string { return keyPrefix + id }
