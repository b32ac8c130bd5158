package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is the size of the largest file that is read, in bytes.
const maxFile = 8 << 20

// Load reads the file at path. Its error is Faults.
func Load(path string) (*Config, error) { return LoadWithFields(path, nil) }

// LoadWithFields is Load with fields as for Config.WithFields. The values of the file for these
// fields, and their defaults, do not count.
func LoadWithFields(path string, fields map[string]string) (*Config, error) {
	data, err := read(path, maxFile)
	if err != nil {
		return nil, unreadableFile(path, err)
	}
	c, faults := parseWithFields(path, data, fields)
	if len(faults) > 0 {
		return nil, faults
	}
	c.File = path
	return c, nil
}

// AdminAddress returns the field admin of the file with this name. It accepts a file with faults in
// other fields, or in other lines if it is not valid YAML. So an operator reaches the running
// gateway while the file is being changed. The error is Faults.
func AdminAddress(name string) (string, error) {
	data, err := read(name, maxFile)
	if err != nil {
		return "", unreadableFile(name, err)
	}
	d, c := newDecoder(name), &Config{}
	root := d.parseDocument(data)
	if root == nil && parseAll(data) != nil {
		if address, ok := adminLine(data); ok {
			return address, nil
		}
	}
	d.decodeStruct(d.resolveAlias(root), reflect.ValueOf(c).Elem(), nil)
	if d.incomplete || !d.valid(path{"admin"}) {
		return "", d.faults
	}
	return c.Admin, nil
}

// adminField is a line that has the field admin of the first level.
var adminField = regexp.MustCompile(`(?m)^admin:[ \t]+["']?([^\s"'#]+)`)

// adminLine returns the field admin of a file that is not valid YAML. If the file does not contain
// the word admin, it returns the default. ok is false if the file does not say it clearly.
func adminLine(data []byte) (address string, ok bool) {
	switch lines := adminField.FindAllSubmatch(data, -1); {
	case len(lines) == 1:
		address = string(lines[0][1])
		_, _, err := net.SplitHostPort(address)
		return address, err == nil
	case len(lines) == 0 && !bytes.Contains(data, []byte("admin")):
		c, err := Parse("", []byte("{}"))
		return c.Admin, err == nil
	default:
		return "", false
	}
}

func unreadableFile(path string, err error) Faults {
	reason := reasonOf(err)
	if errors.Is(err, fs.ErrPermission) {
		reason += fmt.Sprintf(": user %d needs the right to read it, and to enter its folders", os.Geteuid())
	}
	return Faults{{File: path, Message: "cannot be read: " + reason}}
}

// read returns the content of the file at path. A file of more than limit bytes is an error.
func read(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // the file is only read
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("it is larger than %v", Size(limit))
	}
	return data, err
}

// readRegular is read for regular files only, since a device may never end.
func readRegular(path string, limit int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return read(path, limit)
}

// reasonOf returns an error of the file system without its call and its path, for a message that
// has the path.
func reasonOf(err error) string {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// Parse reads a configuration that does not come from a file. name stands for the file in faults.
// Relative paths in data count from the folder of name. The error is Faults: all faults at once.
// Parse looks at the directories and files that data names.
func Parse(name string, data []byte) (*Config, error) {
	c, faults := parseWithFields(name, data, nil)
	if len(faults) > 0 {
		return nil, faults
	}
	return c, nil
}

// WithFields returns the configuration with these fields of its first level in the place of those
// of the file, now and whenever the file is read again. The error is Faults.
func (c *Config) WithFields(fields map[string]string) (*Config, error) {
	next, faults := parseWithFields(c.name, c.source, fields)
	if len(faults) > 0 {
		return nil, faults
	}
	next.File = c.File
	return next, nil
}

// setFields sets fields of the first level of a document. Their line is that of the document.
func setFields(root *yaml.Node, fields map[string]string) {
	if root == nil || root.Kind != yaml.MappingNode {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: fields[name], Line: root.Line}
		at := 0
		for at < len(root.Content) && root.Content[at].Value != name {
			at += 2
		}
		if at < len(root.Content) {
			root.Content[at+1] = value
			continue
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name, Line: root.Line}
		root.Content = append(root.Content, key, value)
	}
}

// parseWithFields is Parse with fields as for Config.WithFields.
func parseWithFields(name string, data []byte, fields map[string]string) (*Config, Faults) {
	d, c := newDecoder(name), &Config{Hash: hashOf(data), name: name, source: data, fields: fields}
	root := d.parseDocument(data)
	setFields(root, fields)
	d.read(root, c)
	d.faults.sort()
	return c, d.faults
}

// read decodes a whole document into c and checks c.
func (d *decoder) read(root *yaml.Node, c *Config) {
	if root != nil {
		d.recordLine(nil, root.Line)
		root = d.resolveAlias(root)
	}
	d.decodeStruct(root, reflect.ValueOf(c).Elem(), nil)
	if !d.incomplete {
		check(d, c)
	}
}

// hashOf returns the SHA-256 of data, in hex.
func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// emptyFile is the fault of a file without any field. Such a file is a mistake: an editor or a disk
// has lost the content.
const emptyFile = "the file is empty: write the fields of the configuration, or {} for the defaults alone"

// parseDocument parses the YAML. It returns nil after a fault.
func (d *decoder) parseDocument(data []byte) *yaml.Node {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		d.incomplete = true
		d.faultOnLine(1, nil, emptyFile)
		return nil
	case err != nil:
		d.reportSyntax(data, err)
		return nil
	}
	if err := decoder.Decode(&second); err == nil {
		d.faultOnLine(second.Line, nil, "a second document begins here, and a file may hold only one: remove it")
	} else if !errors.Is(err, io.EOF) {
		d.reportSyntax(data, err)
	}
	root := document.Content[0]
	if root.ShortTag() == "!!null" {
		d.incomplete = true
		d.faultOnLine(root.Line, nil, emptyFile)
		return nil
	}
	return root
}

// reportSyntax adds a fault for an error of the YAML parser.
func (d *decoder) reportSyntax(data []byte, err error) {
	d.incomplete = true
	line, message := explainSyntax(data, err)
	d.faultOnLine(line, nil, message)
}

// ForUpstreams returns the configuration of a gateway in front of running servers, whose models are
// discovered. Each server has these slots; 0 asks it. The gateway needs no keys and listens on
// loopback only (127.0.0.1:8080). The error is Faults about the URLs and the slots.
func ForUpstreams(urls []string, slots int) (*Config, error) {
	const name = "--upstream"
	var servers []any
	for _, url := range urls {
		if slots == 0 {
			servers = append(servers, url)
		} else {
			servers = append(servers, map[string]any{"url": url, "slots": slots})
		}
	}
	data, err := yaml.Marshal(map[string]any{
		"listen":    "127.0.0.1:8080",
		"auth":      map[string]any{"mode": AuthNone},
		"upstreams": servers,
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
