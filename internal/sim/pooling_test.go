package sim

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

func embeddingsOf(t *testing.T, v map[string]any) [][]float32 {
	t.Helper()
	var list [][]float32
	for i, d := range lookup(v, "data").([]any) {
		if lookup(d, "index") != float64(i) {
			t.Errorf("embedding %d has index %v", i, lookup(d, "index"))
		}
		var vector []float32
		switch e := lookup(d, "embedding").(type) {
		case string:
			raw, err := base64.StdEncoding.DecodeString(e)
			if err != nil {
				t.Fatal(err)
			}
			for ; len(raw) > 0; raw = raw[4:] {
				vector = append(vector, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
			}
		case []any:
			for _, x := range e {
				vector = append(vector, float32(x.(float64)))
			}
		}
		if length := dot(vector, vector); math.Abs(length-1) > 1e-5 {
			t.Errorf("embedding %d has length² %v", i, length)
		}
		list = append(list, vector)
	}
	return list
}

func TestEmbeddings(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{EmbeddingDim: 64})
	texts := `"input":["the blue sea","the sea is blue","tax law"]`
	v := s.object("/v1/embeddings", `{`+texts+`}`)
	floats := embeddingsOf(t, v)
	packed := embeddingsOf(t, s.object("/v1/embeddings", `{`+texts+`,"encoding_format":"base64"}`))
	for i := range floats {
		for j := range floats[i] {
			if floats[i][j] != packed[i][j] {
				t.Fatalf("embedding %d differs between the encodings at %d", i, j)
			}
		}
	}
	if len(floats) != 3 || len(floats[0]) != 64 {
		t.Fatalf("%d vectors of %d", len(floats), len(floats[0]))
	}
	if near, far := dot(floats[0], floats[1]), dot(floats[0], floats[2]); near < far+0.3 {
		t.Errorf("similar texts are at %.2f, others at %.2f", near, far)
	}
	if lookup(v, "usage", "prompt_tokens") != 9.0 || lookup(v, "usage", "completion_tokens") != 0.0 || lookup(v, "usage", "total_tokens") != 9.0 {
		t.Errorf("unexpected usage: %v", lookup(v, "usage"))
	}
	if short := embeddingsOf(t, s.object("/v1/embeddings", `{"input":"x","dimensions":8}`)); len(short) != 1 || len(short[0]) != 8 {
		t.Errorf("8 dimensions: %v", short)
	}
	embeddingsOf(t, s.object("/v1/embeddings", `{"input":[[1,2],[3]]}`))
	embeddingsOf(t, s.object("/v1/embeddings", `{"input":["","…"]}`))
}

func TestRerankAndScore(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	v := s.object("/v1/rerank", `{"query":"blue sea","documents":["tax law",{"text":"the sea is blue"},"a blue hill"],"top_n":2}`)
	results := lookup(v, "results").([]any)
	if len(results) != 2 || lookup(results, 0, "index") != 1.0 || lookup(results, 1, "index") != 2.0 ||
		lookup(results, 0, "document", "text") != "the sea is blue" {
		t.Fatalf("unexpected response: %v", v)
	}
	best, next := lookup(results, 0, "relevance_score").(float64), lookup(results, 1, "relevance_score").(float64)
	if best <= next || best > 1 || next < 0 || lookup(v, "usage", "total_tokens").(float64) < 10 {
		t.Errorf("unexpected response: %v", v)
	}
	for _, names := range [][2]string{{"text_1", "text_2"}, {"queries", "documents"}, {"data_1", "data_2"}, {"queries", "items"}} {
		v := s.object("/v1/score", `{"`+names[0]+`":"blue sea","`+names[1]+`":["tax law","the sea is blue"]}`)
		if lookup(v, "data", 1, "score") != best || lookup(v, "data", 0, "score").(float64) >= best || lookup(v, "data", 0, "object") != "score" {
			t.Errorf("%v: %v", names, v)
		}
	}
	v = s.object("/v1/score", `{"text_1":["blue sea","tax"],"text_2":["blue sea","tax"]}`)
	if a, b := lookup(v, "data", 0, "score").(float64), lookup(v, "data", 1, "score").(float64); math.Abs(a-b) > 1e-6 {
		t.Errorf("two texts that are alike score %v and %v", a, b)
	}
}

// wavFile returns a WAV file with 8000 bytes per second.
func wavFile(seconds int) []byte {
	b := []byte("RIFF\x00\x00\x00\x00WAVELIST\x03\x00\x00\x00abc\x00fmt \x10\x00\x00\x00\x01\x00\x01\x00")
	b = binary.LittleEndian.AppendUint32(b, 8000)
	b = binary.LittleEndian.AppendUint32(b, 8000)
	b = append(b, "\x01\x00\x08\x00data"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(8000*seconds))
	return append(b, make([]byte, 8000*seconds)...)
}

// upload posts a form with a file.
func (s *server) upload(path string, file []byte, fields ...string) *http.Response {
	s.t.Helper()
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	for i := 0; i+1 < len(fields); i += 2 {
		if err := form.WriteField(fields[i], fields[i+1]); err != nil {
			s.t.Fatal(err)
		}
	}
	if file != nil {
		part, err := form.CreateFormFile("file", "a.wav")
		if err != nil {
			s.t.Fatal(err)
		}
		part.Write(file)
	}
	form.Close()
	return s.post(path, b.String(), "Content-Type", form.FormDataContentType())
}

// TestEditedImages: OpenAI's clients send one image as image, and each of several as image[].
func TestEditedImages(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	for field, want := range map[string]int{"image": http.StatusOK, "image[]": http.StatusOK, "images": http.StatusBadRequest} {
		var b bytes.Buffer
		form := multipart.NewWriter(&b)
		for _, name := range []string{"a.png", "b.png"} {
			if _, err := form.CreateFormFile(field, name); err != nil {
				t.Fatal(err)
			}
		}
		form.Close()
		r := s.post("/v1/images/edits", b.String(), "Content-Type", form.FormDataContentType())
		if body, err := readAll(r); err != nil || r.StatusCode != want || strings.Contains(body, `"b64_json"`) != (want == http.StatusOK) {
			t.Errorf("%s: %d %s %v", field, r.StatusCode, body, err)
		}
	}
}

func TestAudio(t *testing.T) {
	t.Parallel()
	s := newServer(t, Config{})
	text := "This is a simulated transcription of 3.0 seconds of audio, 24056 bytes long."
	ask := func(path string, fields ...string) string {
		t.Helper()
		r := s.upload(path, wavFile(3), append(fields, "model", "sim")...)
		body, err := readAll(r)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s %v: %d %s %v", path, fields, r.StatusCode, body, err)
		}
		return body
	}
	v := decode(t, ask("/v1/audio/transcriptions"))
	if lookup(v, "text") != text || lookup(v, "usage", "seconds") != 3.0 || lookup(v, "usage", "type") != "duration" {
		t.Errorf("json: %v", v)
	}
	if got := ask("/v1/audio/transcriptions", "response_format", "text"); got != text+"\n" {
		t.Errorf("text: %q", got)
	}
	v = decode(t, ask("/v1/audio/transcriptions", "response_format", "verbose_json", "timestamp_granularities[]", "word", "language", "de"))
	if lookup(v, "duration") != 3.0 || lookup(v, "language") != "de" || lookup(v, "segments", 0, "end") != 3.0 || lookup(v, "words", 0, "word") != "This" {
		t.Errorf("verbose_json: %v", v)
	}
	if v := decode(t, ask("/v1/audio/translations")); !strings.Contains(lookup(v, "text").(string), "translation of 3.0") {
		t.Errorf("translation: %v", v)
	}
	events, err := readEvents(strings.NewReader(ask("/v1/audio/transcriptions", "stream", "true")))
	if got := joinDeltas(t, events, 0); got != text || err != nil || events[len(events)-1] != "[DONE]" {
		t.Errorf("streamed: %q %v", got, err)
	}
	for want, fields := range map[int][]string{404: {"model", "nope"}, 400: {"response_format", "mp3"}} {
		if r := s.upload("/v1/audio/transcriptions", wavFile(1), fields...); r.StatusCode != want {
			t.Errorf("%v: %d", fields, r.StatusCode)
		}
	}
	if r := s.upload("/v1/audio/transcriptions", nil, "model", "sim"); r.StatusCode != http.StatusBadRequest {
		t.Errorf("no file: %d", r.StatusCode)
	}
}

func FuzzDuration(f *testing.F) {
	f.Add(wavFile(1))
	f.Add([]byte("RIFF\x00\x00\x00\x00WAVEdata\xff\xff\xff\xff"))
	f.Add([]byte("RIFF\x00\x00\x00\x00WAVEfmt \xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d := duration(b); d < 0 || math.IsNaN(d) || math.IsInf(d, 0) {
			t.Errorf("%v seconds", d)
		}
	})
}
