package openai

import (
	"encoding/json"
	"strings"
	"testing"
)

// Media in a request that has no messages are no text of the prompt: they would cost many tokens,
// and limits would refuse the request.
func TestR12_MediaAreNoText(t *testing.T) {
	data := strings.Repeat("QUJD", 10_000)
	image := "data:image/png;base64," + data
	escaped, _ := json.Marshal(image)
	for name, c := range map[string]struct {
		endpoint Endpoint
		body     string
		parts    int
	}{
		"an image to be embedded":    {Embeddings, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + image + `"}}]}]}`, 1},
		"several":                    {Embeddings, `{"model":"m","input":["` + image + `","` + image + `","text"]}`, 2},
		"documents":                  {Rerank, `{"model":"m","query":"q","documents":[{"image":"` + image + `"}]}`, 1},
		"a voice":                    {Speech, `{"model":"m","input":"hi","ref_audio":"data:audio/wav;base64,` + data + `"}`, 1},
		"an image to be edited":      {Images, `{"model":"m","prompt":"a cat","image":"` + image + `"}`, 1},
		"a video":                    {Score, `{"model":"m","text_1":"a","text_2":"data:video/mp4;codecs=h264;base64,` + data + `"}`, 1},
		"slashes with a backslash":   {Images, `{"model":"m","image":` + strings.ReplaceAll(string(escaped), "/", `\/`) + `}`, 1},
		"a text with such a text":    {Embeddings, `{"model":"m","input":"\"data:image/png;base64,` + data + `"}`, 0},
		"a text that begins like it": {Embeddings, `{"model":"m","input":"data: ` + data + `"}`, 0},
		"a document":                 {Embeddings, `{"model":"m","input":"data:text/plain;base64,` + data + `"}`, 0},
		"no base64":                  {Embeddings, `{"model":"m","input":"data:image/png,` + data + `"}`, 0},
		"a text with backslashes":    {Embeddings, `{"model":"m","input":"\\\"data:image/png;base64,` + data + `"}`, 0},
		"no type":                    {Embeddings, `{"model":"m","input":"data:images;base64,` + data + `"}`, 0},
		"a quote in it":              {Embeddings, `{"model":"m","input":"data:image/png;base64,\"` + data + `"}`, 0},
	} {
		r, fault := Scan(c.endpoint, "application/json", []byte(c.body))
		if fault != nil {
			t.Fatal(name, fault)
		}
		if r.MediaParts() != c.parts {
			t.Errorf("%s: %d parts, want %d", name, r.MediaParts(), c.parts)
		}
		if small := r.PromptBytes() < 500; small != (c.parts > 0) {
			t.Errorf("%s: %d bytes of text", name, r.PromptBytes())
		}
		if c.endpoint == Speech && r.MediaOutput() > 500 {
			t.Errorf("%s: %d tokens of speech", name, r.MediaOutput())
		}
	}
}

// The text beside media counts, before and after them.
func TestR12_MediaBesideText(t *testing.T) {
	image, text := `"data:image/png;base64,`+strings.Repeat("QUJD", 10_000)+`"`, `"`+strings.Repeat("word ", 2000)+`"`
	for _, input := range []string{text + "," + image, image + "," + text, image + "," + text + "," + image} {
		r, fault := Scan(Embeddings, "application/json", []byte(`{"model":"m","input":[`+input+`]}`))
		if n := r.PromptBytes(); fault != nil || n < 10_000 || n > 10_100 {
			t.Errorf("%d bytes of text, want about 10,000 (%v)", n, fault)
		}
	}
}
