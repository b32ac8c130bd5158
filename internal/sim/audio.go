package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"slices"
	"strconv"
	"strings"
)

const (
	// audioTokens is how many prompt tokens a second of audio is: Whisper's encoder makes 1500 of 30 s.
	audioTokens = 50
	// guessedRate is the bytes a second of audio whose format is not looked into, as of a 128 kbit/s MP3.
	guessedRate = 16000
)

// audioRequest is the form that both audio endpoints take.
type audioRequest struct {
	sampling
	format   string
	language string
	words    bool // timestamps for every word
	audio    []byte
	seconds  float64
}

// transcribe answers POST /v1/audio/transcriptions.
func (c *call) transcribe() error { return c.listen("transcription", "transcribe") }

// translate answers POST /v1/audio/translations.
func (c *call) translate() error { return c.listen("translation", "translate") }

// listen answers with a text that tells the length of the recording, in the format that was asked for.
func (c *call) listen(noun, task string) error {
	req, err := c.readAudio()
	if err != nil {
		return err
	}
	said := fmt.Sprintf("This is a simulated %s of %.1f seconds of audio, %d bytes long.", noun, req.seconds, len(req.audio))
	a := answer{filler: c.engine.filler, finish: "stop"}
	for _, t := range tokenize(said) {
		a.pieces = append(a.pieces, piece{text: t})
	}
	limits{}.bound(&a)
	heard := prompt{tokens: int(math.Ceil(req.seconds * audioTokens))}
	g := c.generate([]prompt{heard}, []answer{a})
	defer g.close()
	if req.Stream {
		head := chunkHead(c.id("trsc-"), noun+".chunk", c.model())
		s := &chatStream{call: c, gen: g, opts: &req.sampling, head: head, told: []bool{true}}
		return s.run()
	}
	if err := g.wait(c.r.Context()); err != nil {
		return err
	}
	return c.sayHeard(req, said, task)
}

func (c *call) sayHeard(req *audioRequest, said, task string) error {
	switch req.format {
	case "text":
		return c.send("text/plain; charset=utf-8", []byte(said+"\n"))
	case "verbose_json":
		return c.answer(req.verbose(said, task))
	}
	seconds := int(math.Ceil(req.seconds))
	return c.answer(map[string]any{"text": said, "usage": map[string]any{"type": "duration", "seconds": seconds}})
}

// verbose spreads the words evenly over the recording.
func (req *audioRequest) verbose(said, task string) any {
	v := map[string]any{
		"task": task, "language": req.language, "duration": req.seconds, "text": said,
		"segments": []any{map[string]any{
			"id": 0, "seek": 0, "start": 0.0, "end": req.seconds, "text": said, "tokens": []int{}, "temperature": 0.0,
			"avg_logprob": 0.0, "compression_ratio": 1.0, "no_speech_prob": 0.0,
		}},
	}
	if !req.words {
		return v
	}
	list := strings.Fields(said)
	each := req.seconds / float64(len(list))
	words := make([]any, len(list))
	for i, w := range list {
		words[i] = map[string]any{"word": w, "start": float64(i) * each, "end": float64(i+1) * each}
	}
	v["words"] = words
	return v
}

// readAudio reads the form.
func (c *call) readAudio() (*audioRequest, error) {
	if err := c.r.ParseMultipartForm(int64(len(c.body)) + 1); err != nil {
		return nil, badRequest("", "There was an error parsing the body: %v", err)
	}
	form := c.r.MultipartForm
	if err := c.checkModel(c.r.FormValue("model")); err != nil {
		return nil, err
	}
	if len(form.File["file"]) == 0 {
		return nil, badRequest("file", "Field required: file")
	}
	req := &audioRequest{format: c.r.FormValue("response_format"), language: c.r.FormValue("language")}
	if !slices.Contains([]string{"", "json", "text", "verbose_json"}, req.format) {
		return nil, badRequest("response_format", "Input should be 'json', 'text' or 'verbose_json'")
	}
	if req.language == "" {
		req.language = "en"
	}
	req.Stream, _ = strconv.ParseBool(c.r.FormValue("stream"))
	req.StreamOptions.IncludeUsage, _ = strconv.ParseBool(c.r.FormValue("stream_include_usage"))
	req.words = slices.Contains(form.Value["timestamp_granularities[]"], "word")
	var err error
	req.audio, err = readFile(form.File["file"][0])
	req.seconds = duration(req.audio)
	return req, err
}

func readFile(h *multipart.FileHeader) ([]byte, error) {
	f, err := h.Open()
	if err != nil {
		return nil, badRequest("file", "There was an error reading the file")
	}
	defer f.Close()
	return io.ReadAll(f)
}

// duration is the length in seconds that a WAV file claims; of anything else it is guessed from the size.
func duration(audio []byte) float64 {
	rate, size, err := wav(audio)
	if err != nil {
		return float64(len(audio)) / guessedRate
	}
	return float64(size) / float64(rate)
}

// wav finds the bytes a second and the bytes of sound in a RIFF file.
func wav(b []byte) (rate, size uint32, err error) {
	if len(b) < 12 || string(b[:4]) != "RIFF" || string(b[8:12]) != "WAVE" {
		return 0, 0, errors.ErrUnsupported
	}
	for b = b[12:]; len(b) >= 8; {
		id, length := string(b[:4]), binary.LittleEndian.Uint32(b[4:])
		b = b[8:]
		switch {
		case id == "fmt " && len(b) >= 12:
			rate = binary.LittleEndian.Uint32(b[8:])
		case id == "data" && rate > 0:
			return rate, min(length, uint32(len(b))), nil
		}
		b = b[min(uint64(len(b)), uint64(length)+uint64(length%2)):]
	}
	return 0, 0, errors.ErrUnsupported
}
