package sim

import (
	"cmp"
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
	// audioTokensPerSecond is the number of prompt tokens per second of audio. Whisper's encoder
	// makes 1500 of 30 s.
	audioTokensPerSecond = 50
	// assumedByteRate is the assumed number of bytes per second of a format that is not parsed:
	// that of a 128 kbit/s MP3.
	assumedByteRate = 16000
)

// audioRequest is the form of both audio endpoints.
type audioRequest struct {
	sampling
	// format is the response_format.
	format   string
	language string
	// words tells that every word gets timestamps.
	words bool
	audio []byte
	// seconds is the length of the recording.
	seconds float64
}

// transcribe answers POST /v1/audio/transcriptions.
func (h *handler) transcribe() error { return h.answerAudio("transcription", "transcribe") }

// translate answers POST /v1/audio/translations.
func (h *handler) translate() error { return h.answerAudio("translation", "translate") }

// answerAudio answers with a text that tells the length of the recording, in the requested format.
func (h *handler) answerAudio(noun, task string) error {
	req, err := h.readAudio()
	if err != nil {
		return err
	}
	said := fmt.Sprintf("This is a simulated %s of %.1f seconds of audio, %d bytes long.", noun, req.seconds, len(req.audio))
	a := answer{filler: h.engine.filler, finish: "stop"}
	for _, t := range tokenize(said) {
		a.pieces = append(a.pieces, piece{text: t})
	}
	limits{}.apply(&a)
	heard := prompt{tokens: int(math.Ceil(req.seconds * audioTokensPerSecond))}
	g := h.generate([]prompt{heard}, []answer{a})
	defer g.close()
	if req.Stream {
		head := chunkHead(h.newID("trsc-"), noun+".chunk", h.modelName())
		s := &chatStream{handler: h, generation: g, options: &req.sampling, head: head, roleSent: []bool{true}}
		return s.run()
	}
	if err := g.wait(h.r.Context()); err != nil {
		return err
	}
	return h.sendTranscript(req, said, task)
}

// sendTranscript sends a transcript that is not streamed.
func (h *handler) sendTranscript(req *audioRequest, said, task string) error {
	switch req.format {
	case "text":
		return h.sendBody("text/plain; charset=utf-8", []byte(said+"\n"))
	case "verbose_json":
		return h.sendJSON(req.verboseJSON(said, task))
	}
	seconds := int(math.Ceil(req.seconds))
	return h.sendJSON(map[string]any{"text": said, "usage": map[string]any{"type": "duration", "seconds": seconds}})
}

// verboseJSON returns the response in the format verbose_json. It spreads the words evenly over the
// recording.
func (req *audioRequest) verboseJSON(said, task string) any {
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

// readAudio parses the form.
func (h *handler) readAudio() (*audioRequest, error) {
	if err := h.r.ParseMultipartForm(int64(len(h.requestBody)) + 1); err != nil {
		return nil, badRequest("", "There was an error parsing the body: %v", err)
	}
	form := h.r.MultipartForm
	if err := h.checkModel(h.r.FormValue("model")); err != nil {
		return nil, err
	}
	if len(form.File["file"]) == 0 {
		return nil, badRequest("file", "Field required: file")
	}
	req := &audioRequest{format: h.r.FormValue("response_format"), language: h.r.FormValue("language")}
	if !slices.Contains([]string{"", "json", "text", "verbose_json"}, req.format) {
		return nil, badRequest("response_format", "Input should be 'json', 'text' or 'verbose_json'")
	}
	req.language = cmp.Or(req.language, "en")
	req.Stream, _ = strconv.ParseBool(h.r.FormValue("stream"))
	req.StreamOptions.IncludeUsage, _ = strconv.ParseBool(h.r.FormValue("stream_include_usage"))
	req.words = slices.Contains(form.Value["timestamp_granularities[]"], "word")
	var err error
	req.audio, err = readFile(form.File["file"][0])
	req.seconds = duration(req.audio)
	return req, err
}

// readFile returns the content of an uploaded file.
func readFile(h *multipart.FileHeader) ([]byte, error) {
	f, err := h.Open()
	if err != nil {
		return nil, badRequest("file", "There was an error reading the file")
	}
	defer f.Close()
	return io.ReadAll(f)
}

// duration returns the length of a recording in seconds. That of a WAV file is taken from its
// header; that of other formats is estimated from the size.
func duration(audio []byte) float64 {
	rate, size, err := wav(audio)
	if err != nil {
		return float64(len(audio)) / assumedByteRate
	}
	return float64(size) / float64(rate)
}

// wav returns the bytes per second and the bytes of sound of a RIFF file. It returns
// errors.ErrUnsupported for other files.
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
