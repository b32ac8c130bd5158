package sim

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/cespare/xxhash/v2"
)

// maxEmbedWords is the number of words of a text that its embedding depends on. A real model also
// has a longest input.
const maxEmbedWords = 4096

// embeddingRequest is the body of POST /v1/embeddings, without the fields that the engine ignores.
type embeddingRequest struct {
	Model          string `json:"model"`
	Input          input  `json:"input"`
	EncodingFormat string `json:"encoding_format"`
	Dimensions     *int   `json:"dimensions"`
}

// embeddings answers POST /v1/embeddings.
func (h *handler) embeddings() error {
	var req embeddingRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	dim, err := h.checkEmbedding(&req)
	if err != nil {
		return err
	}
	u, err := h.prefill(req.Input.prompts(h.newPrompt("")))
	if err != nil {
		return err
	}
	data := make([]any, 0, len(req.Input.texts()))
	for i, text := range req.Input.texts() {
		var value any = truncate(h.engine.embed(text), dim)
		if req.EncodingFormat == "base64" {
			value = base64Floats(value.([]float32))
		}
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": value})
	}
	return h.sendJSON(map[string]any{
		"id": h.newID("embd-"), "object": "list", "created": time.Now().Unix(), "model": h.modelName(), "data": data, "usage": u,
	})
}

// checkEmbedding checks the request and returns the length of its vectors.
func (h *handler) checkEmbedding(req *embeddingRequest) (int, error) {
	longest := h.engine.config.EmbeddingDim
	if err := h.checkModel(req.Model); err != nil {
		return 0, err
	}
	if len(req.Input.rawTexts)+len(req.Input.ids) == 0 {
		return 0, badRequest("input", "Field required: input")
	}
	switch req.EncodingFormat {
	case "", "float", "base64":
	default:
		return 0, badRequest("encoding_format", "Input should be 'float' or 'base64'")
	}
	if req.Dimensions == nil {
		return longest, nil
	}
	if *req.Dimensions < 1 || *req.Dimensions > longest {
		return 0, badRequest("dimensions", "dimensions must be between 1 and %d, got %d", longest, *req.Dimensions)
	}
	return *req.Dimensions, nil
}

// prefill runs the prompts, from which nothing is generated, and returns their usage.
func (h *handler) prefill(prompts []prompt) (usage, error) {
	g := h.generate(prompts, make([]answer, len(prompts)))
	defer g.close()
	err := g.wait(h.r.Context())
	return g.usage(), err
}

// embed maps a text to a unit vector: the normalised sum of one pseudo-random direction for each of
// its words. So texts that share words have similar vectors.
func (e *Engine) embed(text string) []float32 {
	sum := make([]float64, e.config.EmbeddingDim)
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if len(words) == 0 {
		words = []string{text}
	}
	for _, word := range words[:min(len(words), maxEmbedWords)] {
		state := xxhash.Sum64String(word) ^ e.config.Seed
		for i := range sum {
			sum[i] += nextDirection(&state)
		}
	}
	vector := make([]float32, len(sum))
	for i, v := range sum {
		vector[i] = float32(v)
	}
	return normalise(vector)
}

// nextDirection returns the next number, between -1 and 1, of a SplitMix64 sequence.
func nextDirection(state *uint64) float64 {
	*state += 0x9e3779b97f4a7c15
	z := *state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64(int64(z^z>>31)) / (1 << 63)
}

// truncate returns the first dim numbers of a vector, scaled to length 1.
func truncate(vector []float32, dim int) []float32 {
	if dim == len(vector) {
		return vector
	}
	return normalise(vector[:dim])
}

// normalise scales a vector to length 1, in place.
func normalise(vector []float32) []float32 {
	length := math.Sqrt(dot(vector, vector))
	if length == 0 {
		return vector
	}
	for i := range vector {
		vector[i] = float32(float64(vector[i]) / length)
	}
	return vector
}

// dot returns the scalar product of two vectors.
func dot(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// base64Floats returns OpenAI's base64 encoding of a vector: little-endian 32-bit floats.
func base64Floats(vector []float32) string {
	raw := make([]byte, 0, 4*len(vector))
	for _, v := range vector {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return base64.StdEncoding.EncodeToString(raw)
}
