package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/prefix"
)

// chatOf makes a chat body of about size bytes: a system prompt and turns of prose, as an SDK
// writes it.
func chatOf(size int, prose string) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", "You are a terse assistant. Answer in one paragraph.\nNever guess."}}
	turn := strings.Repeat(prose, max(1, min(size, 16<<10)/4/len(prose)))
	for used := 0; used < size; used += len(turn) {
		role := "user"
		if len(messages)%2 == 0 {
			role = "assistant"
		}
		messages = append(messages, message{role, turn})
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(map[string]any{"model": "llama-3.1-8b", "messages": messages, "stream": true, "max_tokens": 256,
		"temperature": 0.7, "stream_options": map[string]any{"include_usage": true}}); err != nil {
		panic(err)
	}
	return []byte(b.String())
}

const (
	prose   = "The quick brown fox said \"jump\" and the lazy dog did not; it slept on, as lazy dogs will.\n"
	cjk     = "快速的棕色狐狸跳过了懒狗,而懒狗继续睡觉。"
	polish  = "Zażółć gęślą jaźń, powiedział szybki brązowy lis i skoczył. "
	plainly = "The quick brown fox jumps over the lazy dog and it sleeps on, as lazy dogs will. "
)

type body struct {
	name string
	data []byte
}

func bodies() []body {
	return []body{
		{"chat-1KB", chatOf(900, prose)},
		{"chat-32KB", chatOf(32<<10, prose)},
		{"chat-1MB", chatOf(1<<20, prose)},
		{"plain-1MB", chatOf(1<<20, plainly)},
		{"polish-1MB", chatOf(1<<20, polish)},
		{"chinese-1MB", chatOf(1<<20, cjk)},
		{"image-1MB", []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"what is it?"},` +
			`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0KGgoAAAANSUhEUg+/", 43690) + `"}}]}]}`)},
		{"tokens-1MB", []byte(`{"model":"m","input":[` + strings.Repeat("128000, 17, 4093, ", 58254) + `0]}`)},
	}
}

func BenchmarkScan(b *testing.B) {
	for _, body := range bodies() {
		b.Run(body.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body.data)))
			for b.Loop() {
				if _, fault := Scan(Chat, "application/json", body.data); fault != nil {
					b.Fatal(fault)
				}
			}
		})
	}
}

func BenchmarkScanAndKey(b *testing.B) {
	for _, body := range bodies() {
		b.Run(body.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body.data)))
			for b.Loop() {
				r, fault := Scan(Chat, "application/json", body.data)
				if fault != nil {
					b.Fatal(fault)
				}
				r.CacheKey(body.data, 2)
			}
		})
	}
}

// toolsOf makes a chat of about size bytes that is nearly all definitions of tools, as an SDK
// writes it.
func toolsOf(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"llama-3.1-8b","messages":[{"role":"user","content":"Which is warmer?"}],"tools":[`)
	for i := 0; b.Len() < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"function","function":{"name":"get_weather_%d","description":"Returns the weather of a place. Use it only \
if the user asks for it.","parameters":{"type":"object","properties":{"location":{"type":"string","description":"The city and the country, such \
as \"Warsaw, Poland\"."},"unit":{"type":"string","enum":["celsius","fahrenheit"],"default":"celsius"},"days":{"type":"integer","minimum":1,\
"maximum":14},"hourly":{"type":["boolean","null"],"description":"Whether each hour is told."}},"required":["location","unit"],\
"additionalProperties":false},"strict":true}}`, i)
	}
	b.WriteString("]}")
	return []byte(strings.ReplaceAll(b.String(), "\\\n", ""))
}

// shortTurns makes a chat of about size bytes with messages of 100 to 500 bytes.
func shortTurns(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"llama-3.1-8b","messages":[{"role":"system","content":"You are a terse assistant."}`)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; b.Len() < size; i++ {
		from := rng.IntN(20)
		fmt.Fprintf(&b, `,{"role":"%s","content":%q}`, []string{"user", "assistant"}[i%2], strings.Repeat(prose, 6)[from:from+100+rng.IntN(400)])
	}
	b.WriteString(`],"stream":true,"max_tokens":256}`)
	return []byte(b.String())
}

// tokensOf makes a completion whose prompt is about size bytes of tokens.
func tokensOf(size int, separator string) []byte {
	b := []byte(`{"model":"llama-3.1-8b","prompt":[128000`)
	rng := rand.New(rand.NewPCG(1, 2))
	for len(b) < size {
		b = append(b, separator...)
		b = strconv.AppendInt(b, int64(math.Exp(rng.Float64()*math.Log(128000))), 10) // frequent tokens have small numbers
	}
	return append(b, `],"stream":true,"max_tokens":256}`...)
}

// BenchmarkScanAndChain is what a request costs before its replicas are compared.
func BenchmarkScanAndChain(b *testing.B) {
	spaced := strings.NewReplacer(`":`, `": `, `",`, `", `, `},`, `}, `).Replace(string(toolsOf(58 << 10)))
	for _, body := range []body{
		{"long-64KB", chatOf(64<<10, prose)}, {"short-64KB", shortTurns(64 << 10)}, {"tools-64KB", toolsOf(64 << 10)}, {"tools-spaced-64KB", []byte(spaced)},
		{"tools-2KB", toolsOf(2 << 10)}, {"chat-1KB", chatOf(900, prose)},
		{"tokens-64KB", tokensOf(64<<10, ",")}, {"tokens-spaced-64KB", tokensOf(64<<10, ", ")},
	} {
		endpoint := Chat
		if strings.HasPrefix(body.name, "tokens") {
			endpoint = Completions
		}
		b.Run(body.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body.data)))
			for b.Loop() {
				r, fault := Scan(endpoint, jsonType, body.data)
				if fault != nil {
					b.Fatal(fault)
				}
				if c := r.Chain(body.data, 2); c.Bytes == 0 {
					b.Fatal("no chain")
				}
			}
		})
	}
}

// BenchmarkUnmarshal is the same by encoding/json: what a gateway needs, and no check of
// duplicates.
func BenchmarkUnmarshal(b *testing.B) {
	for _, body := range bodies() {
		b.Run(body.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body.data)))
			for b.Loop() {
				var r struct {
					Model         string
					Stream        bool
					MaxTokens     int `json:"max_tokens"`
					StreamOptions struct {
						IncludeUsage bool `json:"include_usage"`
					} `json:"stream_options"`
					Messages []struct {
						Role    string
						Content json.RawMessage
					}
				}
				if err := json.Unmarshal(body.data, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkValid(b *testing.B) {
	for _, body := range bodies() {
		b.Run(body.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body.data)))
			for b.Loop() {
				if !json.Valid(body.data) {
					b.Fatal("invalid")
				}
			}
		})
	}
}

func BenchmarkScanForm(b *testing.B) {
	for _, size := range []int{64 << 10, 8 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			audio := make([]byte, size)
			rand.NewChaCha8([32]byte{}).Read(audio)
			const line = "--3f6a0d9c4b7e4f0f9f6f1f5f2b1c7a8e"
			data := []byte(line + "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n" + line + "\r\n" +
				"Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n" +
				string(audio) + "\r\n" + line + "--\r\n")
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, fault := Scan(Transcriptions, "multipart/form-data; boundary="+line[2:], data); fault != nil {
					b.Fatal(fault)
				}
			}
		})
	}
}

// BenchmarkScanAndMatch is what routing by the prefix index needs of a request before the choice.
// That is the scan, the chain, and the match on 8 replicas that have 2,000 prompts.
func BenchmarkScanAndMatch(b *testing.B) {
	x := prefix.NewIndex(nil)
	for range 8 {
		x.Slot(1 << 20)
	}
	for i := range 2000 {
		data := chatOf(900, fmt.Sprint(i, prose))
		r := mustScan(b, Chat, string(data))
		c := r.Chain(data, 2)
		x.Record(i%8, &c)
	}
	for _, body := range []body{
		{"chat-1KB", chatOf(900, prose)}, {"chat-64KB", chatOf(64<<10, prose)}, {"plain-64KB", chatOf(64<<10, plainly)},
	} {
		r := mustScan(b, Chat, string(body.data))
		c := r.Chain(body.data, 2)
		x.Record(3, &c)
		matched := make([]int32, x.Slots())
		b.Run(body.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body.data)))
			for b.Loop() {
				r, fault := Scan(Chat, jsonType, body.data)
				if fault != nil {
					b.Fatal(fault)
				}
				c := r.Chain(body.data, 2)
				x.Match(&c, matched)
				if int(matched[3]) != c.Bytes {
					b.Fatal("the prompt is not known")
				}
			}
		})
	}
}
