package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is the largest file that is read.
const maxFile = 8 << 20

// Load reads the file at path. The error is Faults.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	c, faults := parse(path, data)
	if len(faults) > 0 {
		return nil, faults
	}
	c.File = path
	return c, nil
}

func unreadable(path string, err error) Faults {
	return Faults{{File: path, Message: "cannot be read: " + reasonOf(err)}}
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it is larger than %v", Size(maxFile))
	}
	return data, err
}

// reasonOf is an error of the file system without the path, which its reader knows.
func reasonOf(err error) string {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// Parse reads a configuration that does not come from a file. name is what it goes by in faults; paths in it that are not absolute
// count from the folder of that name. The error is Faults, all of them. Directories that it names are looked up in the file system.
func Parse(name string, data []byte) (*Config, error) {
	c, faults := parse(name, data)
	if len(faults) > 0 {
		return nil, faults
	}
	return c, nil
}

func parse(name string, data []byte) (*Config, Faults) {
	d, c := newDecoder(name), &Config{Hash: hashOf(data), name: name, source: data}
	d.read(d.document(data), c)
	d.faults.sort()
	return c, d.faults
}

// read reads a whole document and checks it.
func (d *decoder) read(root *yaml.Node, c *Config) {
	if root != nil {
		d.note(nil, root.Line)
		root = d.follow(root)
	}
	d.structure(root, reflect.ValueOf(c).Elem(), nil)
	if !d.unreadable {
		check(d, c)
	}
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// document parses the YAML. It returns nil for an empty document, and after a fault of syntax.
func (d *decoder) document(data []byte) *yaml.Node {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	if err := decoder.Decode(&second); err == nil {
		d.faultOn(second.Line, nil, "a second document begins here; a file holds one")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
	if root := document.Content[0]; root.ShortTag() != "!!null" {
		return root
	}
	return nil
}

// syntax adds a fault for an error of the YAML parser, which names the line in its text.
func (d *decoder) syntax(err error) {
	d.unreadable = true
	message, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := regexp.MustCompile(`^line (\d+): `).FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1])
		message = message[len(m[0]):]
	}
	d.faultOn(line, nil, "not YAML: "+message)
}

// Default is the configuration of an empty file: nobody is let in, and there are no models.
func Default() *Config {
	c, err := Parse("", nil)
	if err != nil {
		panic("config: the defaults are at fault: " + err.Error())
	}
	return c
}

// ForUpstreams is the configuration for a gateway in front of servers that run already, whose models are discovered: no keys, and
// on loopback only (127.0.0.1:8080). The error is Faults about the URLs.
func ForUpstreams(urls []string) (*Config, error) {
	const name = "--upstream"
	data, err := yaml.Marshal(map[string]any{
		"listen":    "127.0.0.1:8080",
		"auth":      map[string]any{"mode": AuthNone},
		"upstreams": urls,
	})
	if err != nil {
		return nil, Faults{{File: name, Message: err.Error()}}
	}
	c, err := Parse(name, data)
	var faults Faults
	if errors.As(err, &faults) {
		for i := range faults {
			faults[i].Line, faults[i].Path = 0, strings.TrimPrefix(faults[i].Path, "upstreams")
		}
	}
	return c, err
}
