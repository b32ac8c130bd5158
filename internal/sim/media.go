package sim

import (
	"encoding/binary"
	"strconv"
	"time"
)

// speechRate is the number of bytes in a second of speech: 8,000 samples of one byte.
const speechRate = 8000

// speak answers POST /v1/audio/speech with silence, as a WAV file of a tenth of a second for each
// token of the text.
func (h *handler) speak() error {
	var req struct {
		Model string `json:"model"`
		Input string `json:"input"`
	}
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	if err := h.checkModel(req.Model); err != nil {
		return err
	}
	if req.Input == "" {
		return badRequest("input", "Field required: input")
	}
	u, err := h.prefill([]prompt{h.newPrompt("").withText(req.Input)})
	if err != nil {
		return err
	}
	return h.sendBody("audio/wav", silence(u.PromptTokens*speechRate/10))
}

// silence returns a WAV file with so many samples of silence.
func silence(samples int) []byte {
	file := []byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00")
	binary.LittleEndian.PutUint32(file[4:], uint32(36+samples))
	file = binary.LittleEndian.AppendUint32(file, speechRate)
	file = binary.LittleEndian.AppendUint32(file, speechRate)
	file = append(file, 1, 0, 8, 0)
	file = binary.LittleEndian.AppendUint32(append(file, "data"...), uint32(samples))
	for range samples {
		file = append(file, 128)
	}
	return file
}

// pixel is a PNG file of one pixel.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// draw answers POST /v1/images/generations.
func (h *handler) draw() error {
	var req struct {
		Model  string `json:"model"`
		Prompt string `json:"prompt"`
		N      *whole `json:"n"`
	}
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	if req.Prompt == "" {
		return badRequest("prompt", "Field required: prompt")
	}
	n := 1
	if req.N != nil {
		n = int(*req.N)
	}
	return h.sendImages(req.Model, req.Prompt, n)
}

// redraw answers POST /v1/images/edits and POST /v1/images/variations.
func (h *handler) redraw() error {
	if err := h.r.ParseMultipartForm(int64(len(h.requestBody)) + 1); err != nil {
		return badRequest("", "There was an error parsing the body: %v", err)
	}
	if files := h.r.MultipartForm.File; len(files["image"])+len(files["image[]"]) == 0 {
		return badRequest("image", "Field required: image")
	}
	n, err := strconv.Atoi(h.r.FormValue("n"))
	if err != nil {
		n = 1
	}
	return h.sendImages(h.r.FormValue("model"), h.r.FormValue("prompt"), n)
}

// sendImages answers with n images, all of which are one red pixel.
func (h *handler) sendImages(model, text string, n int) error {
	if err := h.checkModel(model); err != nil {
		return err
	}
	if n < 1 || n > 10 {
		return badRequest("n", "Input should be from 1 to 10")
	}
	if _, err := h.prefill([]prompt{h.newPrompt("").withText(text)}); err != nil {
		return err
	}
	data := make([]any, n)
	for i := range data {
		data[i] = map[string]any{"b64_json": pixel}
	}
	return h.sendJSON(map[string]any{"created": time.Now().Unix(), "data": data})
}
