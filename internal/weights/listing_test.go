package weights

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func listing(files ...string) *Listing {
	l := &Listing{Repository: "org/model", Commit: strings.Repeat("a", 40)}
	for i, path := range files {
		l.Files = append(l.Files, File{Path: path, Size: int64(100 + i)})
	}
	return l
}

func TestU19_VariantsOfARepository(t *testing.T) {
	l := listing("README.md", "mmproj-F16.gguf", "model-F16.gguf", "model-UD-Q4_K_XL.gguf", "model.imatrix.gguf", "qwen2.5-0.5b-instruct-q4_k_m.gguf",
		"Q8_0/model-Q8_0-00002-of-00002.gguf", "Q8_0/model-Q8_0-00001-of-00002.gguf", "model-IQ2_XXS.gguf", "gpt-oss-MXFP4.gguf", "Q-model.gguf")
	got := map[string]string{}
	var order []string
	for _, v := range l.Variants() {
		order = append(order, v.Quant)
		got[v.Quant] = v.Files[0].Path
	}
	if diff := cmp.Diff([]string{"Q4_K_M", "MXFP4", "Q4_K_XL", "Q8_0", "F16", "IQ2_XXS", ""}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if got["Q8_0"] != "Q8_0/model-Q8_0-00001-of-00002.gguf" || got[""] != "Q-model.gguf" {
		t.Errorf("files %v", got)
	}
}

func TestU19_SelectedFiles(t *testing.T) {
	wholeToo := []string{"b-Q8_0-00001-of-00002.gguf", "b-Q8_0-00002-of-00002.gguf", "b-Q8_0.gguf"}
	modules := []string{"config.json", "model.safetensors", "2_Dense/config.json", "2_Dense/pytorch_model.bin", "3_Dense/model.safetensors",
		"3_Dense/pytorch_model.bin", "pytorch_model.bin"}
	both := []string{"config.json", "model.safetensors", "model-Q8_0.gguf"}
	split := []string{"b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "c.txt"}
	for _, tt := range []struct {
		what  string
		files []string
		s     Source
		load  string
		want  []string
	}{
		{"GGUF alone", both[2:], Source{}, "model-Q8_0.gguf", both[2:]},
		{"both, for a directory", both, Source{}, "", both[:2]},
		{"both, for GGUF", both, Source{GGUF: true}, "model-Q8_0.gguf", both[2:]},
		{"all parts", split, Source{}, split[0], split[:2]},
		{"a part means all", split, Source{File: split[1]}, split[0], split[:2]},
		{"any file", split, Source{File: "c.txt"}, "c.txt", split[2:]},
		{"whole beside its parts", wholeToo, Source{File: "b-Q8_0.gguf"}, "b-Q8_0.gguf", wholeToo[2:3]},
		{"parts beside the whole", wholeToo, Source{File: wholeToo[0]}, wholeToo[0], wholeToo[:2]},
		{"modules of sentence-transformers", modules, Source{}, "", modules[:5]},
		{"CTranslate2", []string{"config.json", "model.bin", "README.md"}, Source{}, "", []string{"config.json", "model.bin"}},
	} {
		got, err := listing(tt.files...).Select(tt.s)
		if err != nil {
			t.Errorf("%s: %v", tt.what, err)
			continue
		}
		var paths []string
		for _, f := range got.Files {
			paths = append(paths, f.Path)
		}
		if diff := cmp.Diff(tt.want, paths); diff != "" || got.Load != tt.load {
			t.Errorf("%s: load %q, want %q; files (-want +got):\n%s", tt.what, got.Load, tt.load, diff)
		}
	}
	if _, err := listing(both[:2]...).Select(Source{GGUF: true}); err == nil || !strings.Contains(err.Error(), "-GGUF") {
		t.Errorf("no GGUF: %v", err)
	}
}

func TestU19_ProgressIsReadable(t *testing.T) {
	p := Progress{Done: 1288490189, Total: 4402341478, Rate: 89128960}
	if want := "fetching weights: 1.2 GiB of 4.1 GiB (29 %), 85.0 MiB/s, 35s left"; p.String() != want {
		t.Errorf("%q, want %q", p.String(), want)
	}
	if want := "fetching weights: 1 B of 128.0 GiB (0 %), 1 B/s"; (Progress{Done: 1, Total: 128 << 30, Rate: 1}).String() != want {
		t.Errorf("%q, want %q", Progress{Done: 1, Total: 128 << 30, Rate: 1}.String(), want)
	}
	for want, p := range map[string]Progress{
		"asking the hub what to fetch": {}, "asking the hub what to fetch: next try in 2s: no": {Trouble: "next try in 2s: no"},
	} {
		if p.String() != want {
			t.Errorf("%q, want %q", p.String(), want)
		}
	}
	if want := "fetching weights: 0 B of 999 B (0 %)"; (Progress{Total: 999}).String() != want {
		t.Errorf("%q, want %q", Progress{Total: 999}.String(), want)
	}
}

func TestU19_PathsStayInTheRepository(t *testing.T) {
	for path, ok := range map[string]bool{
		"a/b.gguf": true, "../b": false, "/b": false, "a/../../b": false, "a//b": false, "": false, `a\b`: false, "a/./b": false,
	} {
		if ValidPath(path) != ok {
			t.Errorf("ValidPath(%q) = %v", path, !ok)
		}
	}
	for id, ok := range map[string]bool{
		"org/name": true, "name": true, "../x": false, "a/b/c": false, "a--b/c": false, "org/": false, "-x/y": false, "a/..": false,
	} {
		if ValidRepository(id) != ok {
			t.Errorf("ValidRepository(%q) = %v", id, !ok)
		}
	}
}
