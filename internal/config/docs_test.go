package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// yamlBlock matches a block of YAML in Markdown: its indent and its text.
	yamlBlock = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```$")
	// ofAnother matches the beginning of a file of another program.
	ofAnother = regexp.MustCompile(`^(apiVersion|scrape_configs|model_list):`)
	// notHere matches the fault of a file or a variable that the reader has.
	notHere = regexp.MustCompile(`no such file or directory|names an environment variable that is not set`)
)

// TestO11_FilesOfTheDocsLoad loads each configuration file of the README, the documents and the
// examples. A reader begins with it.
func TestO11_FilesOfTheDocsLoad(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"README.md", "docs/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		pages = append(pages, found...)
	}
	loaded := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			file := strings.ReplaceAll("\n"+block[2], "\n"+block[1], "\n")[1:]
			if ofAnother.MatchString(file) {
				continue
			}
			loaded++
			_, faults := parseWithFields(filepath.Join(t.TempDir(), "sluice.yaml"), []byte(file), nil)
			for _, fault := range faults {
				if !notHere.MatchString(fault.Message) {
					t.Errorf("%s: %v in\n%s", page, fault, file)
				}
			}
		}
	}
	if loaded < 40 {
		t.Errorf("only %d files were loaded", loaded)
	}
}
