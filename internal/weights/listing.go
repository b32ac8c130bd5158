package weights

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Listing is what a repository holds at one commit.
type Listing struct {
	Repository string
	Commit     string
	// Task is the hub's word for the task, its pipeline_tag, such as text-generation. It is empty
	// if the hub knows none.
	Task string `json:",omitempty"`
	// Architecture is the architecture of a GGUF file in the repository, such as llama. It is empty
	// if the hub tells none.
	Architecture string `json:",omitempty"`
	// ContextLength is how many tokens of context a GGUF file in the repository was trained with. 0
	// means unknown.
	ContextLength int `json:",omitempty"`
	Files         []File
}

// File is one file of a repository.
type File struct {
	// Path is the path in the repository, with slashes.
	Path string
	// Size is the number of bytes.
	Size int64
	// Hash is the SHA-256 of the content if it has 64 digits, and the hash of a git blob if it has
	// 40. It is empty if the hub's listing does not tell; then the hub is asked for it.
	Hash string
}

// Selection is what Listing.Select chose.
type Selection struct {
	// Files are the files to fetch.
	Files []File
	// Load is the path of the file that the engine loads. It is empty if the engine loads the
	// directory.
	Load string

	commit string
}

// Bytes returns the size of all files.
func (s Selection) Bytes() int64 { return totalSize(s.Files) }

// consolidated matches the weights of a model in the format of Mistral's own programs.
var consolidated = regexp.MustCompile(`^consolidated(-\d{5}-of-\d{5})?\.safetensors$`)

// LoadedBytes returns the size of what an engine loads into memory. Repositories of Mistral hold
// the same weights in two formats, of which an engine loads one.
func (s Selection) LoadedBytes() int64 {
	var second, first int64
	for _, f := range s.Files {
		switch {
		case consolidated.MatchString(f.Path):
			second += f.Size
		case strings.HasSuffix(f.Path, ".safetensors"):
			first += f.Size
		}
	}
	return s.Bytes() - min(second, first)
}

func totalSize(files []File) int64 {
	var sum int64
	for _, f := range files {
		sum += f.Size
	}
	return sum
}

// set replaces the file of the same path.
func (l *Listing) set(f File) {
	for i := range l.Files {
		if l.Files[i].Path == f.Path {
			l.Files[i] = f
		}
	}
}

// Variant is one quantisation of a model as GGUF: one file, or the parts of one that was split.
type Variant struct {
	// Quant is the name of the quantisation, such as Q4_K_M. It is empty if the file's name has
	// none.
	Quant string
	// Files are the parts in their order. An engine loads the first and finds the others.
	Files []File
}

// Bytes returns the size of all parts.
func (v Variant) Bytes() int64 { return totalSize(v.Files) }

var (
	// part matches the end of the name of one part of a split file, with the number of parts.
	part = regexp.MustCompile(`-\d{5}-of-(\d{5})\.gguf$`)
	// quant matches the name of a quantisation between separators.
	quant = regexp.MustCompile(`(?i)(?:^|[-._/])((?:I?Q[1-9](?:_[0-9A-Z]+)*)|TQ[12]_0|MXFP4(?:_MOE)?|BF16|F16|FP16|F32)(?:$|[-._/])`)
)

// quantOrder lists quantisations from the one that is chosen first. Q4_K_M is what llama.cpp takes
// too: a quarter of the size of the original, with a small loss. Those that lose more come after
// those that are larger.
var quantOrder = []string{
	"Q4_K_M", "MXFP4_MOE", "MXFP4", "Q4_K_XL", "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q4_0", "IQ4_XS", "IQ4_NL", "Q4_1", "Q5_0", "Q5_1", "Q6_K", "Q8_0",
	"Q3_K_L", "Q3_K_M", "IQ3_M", "Q3_K_S", "IQ3_XS", "IQ3_XXS", "Q2_K", "IQ2_M", "BF16", "F16", "FP16", "F32",
}

// rank returns the place of the quantisation in quantOrder. Unknown ones come last.
func (v Variant) rank() int {
	if i := slices.Index(quantOrder, v.Quant); i >= 0 {
		return i
	}
	return len(quantOrder)
}

// Variants returns the quantisations of the repository, the one that is chosen first in front.
func (l *Listing) Variants() []Variant {
	var variants []Variant
	at := map[string]int{}
	for _, f := range l.Files {
		base := strings.ToLower(path.Base(f.Path))
		if !strings.HasSuffix(base, ".gguf") || strings.Contains(base, "mmproj") || strings.Contains(base, "imatrix") {
			continue
		}
		key := part.ReplaceAllString(f.Path, "-of-$1.gguf") // not the name of a file that is whole
		i, ok := at[key]
		if !ok {
			i, at[key] = len(variants), len(variants)
			variants = append(variants, Variant{Quant: quantOf(key)})
		}
		variants[i].Files = append(variants[i].Files, f)
	}
	for _, v := range variants {
		slices.SortFunc(v.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	}
	slices.SortStableFunc(variants, func(a, b Variant) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Bytes(), b.Bytes()), cmp.Compare(a.Files[0].Path, b.Files[0].Path))
	})
	return variants
}

// quantOf returns the last name of a quantisation in the path.
func quantOf(path string) string {
	path, last := strings.TrimSuffix(path, ".gguf")+"/", ""
	for path != "" {
		m := quant.FindStringSubmatchIndex(path)
		if m == nil {
			break
		}
		last, path = strings.ToUpper(path[m[2]:m[3]]), path[m[3]:]
	}
	return last
}

// HasSafetensors reports whether the repository holds a model as transformers and vLLM load it.
func (l *Listing) HasSafetensors() bool {
	has := func(ok func(name string) bool) bool {
		return slices.ContainsFunc(l.Files, func(f File) bool { return ok(f.Path) })
	}
	return has(func(n string) bool { return n == "config.json" }) &&
		has(func(n string) bool { return !strings.Contains(n, "/") && strings.HasSuffix(n, ".safetensors") })
}

// Select returns the files that s wants. That is the file that it names, or else a GGUF file if
// s.GGUF is set or the repository has no safetensors. Else it is all files that a program needs
// that loads the directory.
func (l *Listing) Select(s Source) (Selection, error) {
	selection := Selection{commit: l.Commit}
	variants := l.Variants()
	switch {
	case s.File != "":
		files, err := l.named(s.File, variants)
		selection.Files, selection.Load = files, s.File
		if err == nil && len(files) > 1 {
			selection.Load = files[0].Path
		}
		return selection, err
	case len(variants) > 0 && (s.GGUF || !l.HasSafetensors()):
		selection.Files, selection.Load = variants[0].Files, variants[0].Files[0].Path
		return selection, nil
	case s.GGUF:
		return selection, fmt.Errorf("repository %s holds no GGUF file: name one that does, often the one with -GGUF at its end", l.Repository)
	}
	if selection.Files = l.directory(); len(selection.Files) == 0 {
		return selection, fmt.Errorf("repository %s holds no files", l.Repository)
	}
	return selection, nil
}

// named returns the file of that path, with the other parts if it was split.
func (l *Listing) named(name string, variants []Variant) ([]File, error) {
	for _, v := range variants {
		if slices.ContainsFunc(v.Files, func(f File) bool { return f.Path == name }) {
			return v.Files, nil
		}
	}
	for _, f := range l.Files {
		if f.Path == name {
			return []File{f}, nil
		}
	}
	var known []string
	for _, v := range variants {
		known = append(known, v.Files[0].Path)
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("repository %s holds no file %q", l.Repository, name)
	}
	return nil, fmt.Errorf("repository %s holds no file %q; it holds %s", l.Repository, name, strings.Join(known, ", "))
}

// duplicates are the ends of names of files that hold the same weights as the safetensors, in other
// formats.
var duplicates = []string{".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".gguf", ".mlmodel"}

// module matches the weights of a module of sentence-transformers, such as 2_Dense. They are not
// among those of the model itself.
var module = regexp.MustCompile(`^\d+_\w+/pytorch_model\.bin$`)

// directory returns the files that a program needs that loads the directory. What holds the same
// weights in another format is left out, and so are documents and pictures.
func (l *Listing) directory() []File {
	var files []File
	safetensors := l.HasSafetensors()
	has := map[string]bool{}
	for _, f := range l.Files {
		has[f.Path] = true
	}
	for _, f := range l.Files {
		name := strings.ToLower(f.Path)
		hasEnd := func(end string) bool { return strings.HasSuffix(name, end) }
		switch {
		case module.MatchString(f.Path) && !has[path.Dir(f.Path)+"/model.safetensors"]:
			files = append(files, f)
		case strings.HasPrefix(name, "."), slices.ContainsFunc([]string{".md", ".png", ".jpg", ".jpeg", ".gif", ".pdf"}, hasEnd):
		case safetensors && slices.ContainsFunc(duplicates, hasEnd):
		case safetensors && slices.ContainsFunc([]string{"original/", "onnx/", "openvino/", "coreml/"},
			func(dir string) bool { return strings.HasPrefix(name, dir) }):
		default:
			files = append(files, f)
		}
	}
	return files
}

// ValidPath reports whether the path of a file, or a revision, stays in its folder.
func ValidPath(name string) bool {
	return filepath.IsLocal(name) && !strings.Contains(name, "\\") && path.Clean(name) == name
}
