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

// maxEmbedWords is how much of a text its embedding looks at, as a real model has a longest input too.
const maxEmbedWords = 4096

// embeddingRequest is the body of POST /v1/embeddings, as far as it matters here.
type embeddingRequest struct {
	Model          string `json:"model"`
	Input          input  `json:"input"`
	EncodingFormat string `json:"encoding_format"`
	Dimensions     *int   `json:"dimensions"`
}

// embeddings answers POST /v1/embeddings.
func (c *call) embeddings() error {
	var req embeddingRequest
	if err := c.decode(&req); err != nil {
		return err
	}
	dim, err := c.checkEmbedding(&req)
	if err != nil {
		return err
	}
	u, err := c.prefill(req.Input.prompts())
	if err != nil {
		return err
	}
	data := make([]any, 0, len(req.Input.words()))
	for i, text := range req.Input.words() {
		var value any = shorten(c.engine.embed(text), dim)
		if req.EncodingFormat == "base64" {
			value = pack(value.([]float32))
		}
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": value})
	}
	return c.answer(map[string]any{
		"id": c.id("embd-"), "object": "list", "created": time.Now().Unix(), "model": c.model(), "data": data, "usage": u,
	})
}

// checkEmbedding returns how long the vectors are to be.
func (c *call) checkEmbedding(req *embeddingRequest) (int, error) {
	longest := c.engine.config.EmbeddingDim
	if err := c.checkModel(req.Model); err != nil {
		return 0, err
	}
	if len(req.Input.texts)+len(req.Input.ids) == 0 {
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

// prefill is the work on inputs that nothing is generated from.
func (c *call) prefill(prompts []prompt) (usage, error) {
	g := c.generate(prompts, make([]answer, len(prompts)))
	defer g.close()
	err := g.wait(c.r.Context())
	return g.usage(), err
}

// embed maps a text to a unit vector: the sum of one random direction for each of its words, so that texts with words in
// common lie near each other.
func (e *Engine) embed(text string) []float32 {
	sum := make([]float64, e.config.EmbeddingDim)
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if len(words) == 0 {
		words = []string{text}
	}
	for _, word := range words[:min(len(words), maxEmbedWords)] {
		state := xxhash.Sum64String(word) ^ e.config.Seed
		for i := range sum {
			sum[i] += direction(&state)
		}
	}
	vector := make([]float32, len(sum))
	for i, v := range sum {
		vector[i] = float32(v)
	}
	return unit(vector)
}

// direction is the next number of a SplitMix64 sequence, between -1 and 1.
func direction(state *uint64) float64 {
	*state += 0x9e3779b97f4a7c15
	z := *state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64(int64(z^z>>31)) / (1 << 63)
}

// shorten keeps the first numbers of a vector and its length of one.
func shorten(vector []float32, dim int) []float32 {
	if dim == len(vector) {
		return vector
	}
	return unit(vector[:dim])
}

func unit(vector []float32) []float32 {
	length := math.Sqrt(dot(vector, vector))
	if length == 0 {
		return vector
	}
	for i := range vector {
		vector[i] = float32(float64(vector[i]) / length)
	}
	return vector
}

func dot(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// pack is OpenAI's base64 encoding: little-endian 32-bit floats.
func pack(vector []float32) string {
	raw := make([]byte, 0, 4*len(vector))
	for _, v := range vector {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return base64.StdEncoding.EncodeToString(raw)
}
