package openai

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const formType = "multipart/form-data; boundary=x"

// formOf makes a form with the boundary x. Each part is the rest of its Content-Disposition, "=",
// and the value.
func formOf(parts ...string) string {
	var b strings.Builder
	for _, part := range parts {
		i := strings.LastIndex(part, "=")
		b.WriteString("--x\r\nContent-Disposition: form-data; name=" + part[:i] + "\r\n\r\n" + part[i+1:] + "\r\n")
	}
	return b.String() + "--x--\r\n"
}

func TestScanForm(t *testing.T) {
	t.Parallel()
	const file = `"file"; filename="a.wav"=RIFF` + "\r\n\r\n--y--\x00\xff"
	for _, c := range []struct {
		name, body string
		want       Request
		prompt     int
	}{
		{"only a model", formOf(`"model"=whisper`), Request{Model: "whisper"}, 0},
		{"file first", formOf(file, `"model"=whisper`), Request{Model: "whisper"}, 0},
		{"file last", formOf(`model=whisper`, file), Request{Model: "whisper"}, 0},
		{"streamed", formOf(`"stream"=true`, `"model"=w`, `"stream_include_usage"=True`), Request{Model: "w", Stream: true, IncludeUsage: true}, 0},
		{"not streamed", formOf(`"stream"=0`, `"model"=w`, `"stream_include_usage"=false`), Request{Model: "w"}, 0},
		{"prompt", formOf(`"model"=w`, `"prompt"=hello`, `"temperature"=0`), Request{Model: "w"}, 5},
		{"own options", formOf(`"request_id"=a`, `"timeout_ms"=20`, `"model"=w`, `"max_duration_ms"=0`),
			Request{Model: "w", RequestID: "a", Timeout: 20 * time.Millisecond}, 0},
		{"others may be there twice", formOf(`"granularities[]"=word`, `"granularities[]"=segment`, `"model"=w`), Request{Model: "w"}, 0},
		{"other headers", "--x\r\ncontent-type: text/plain\r\nContent-Length: 1\r\ncontent-disposition:FORM-DATA ;Name=model;\r\n" +
			"Content-Transfer-Encoding: 8bit\r\n\r\nw\r\n--x--", Request{Model: "w"}, 0},
		{"encoded file name", formOf(`"file"; filename="a\"b;name=c"; filename*=UTF-8''%e2%82%ac=x`, `"model"=é`), Request{Model: "é"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, e := range []Endpoint{Transcriptions, Translations} {
				r, fault := Scan(e, formType, []byte(c.body))
				if fault != nil {
					t.Fatal(fault)
				}
				c.want.Endpoint, c.want.Size = e, len(c.body)
				if diff := cmp.Diff(c.want, r, cmpopts.IgnoreUnexported(Request{})); diff != "" {
					t.Error(diff)
				}
				if r.PromptBytes() != c.prompt {
					t.Errorf("%d bytes of prompt; want %d", r.PromptBytes(), c.prompt)
				}
			}
		})
	}
}

func TestFormFaults(t *testing.T) {
	t.Parallel()
	const disposition = "--x\r\nContent-Disposition: form-data; name="
	model := formOf(`"model"=w`)
	for _, c := range []struct{ body, param, message string }{
		{"", "", "The form is empty, at byte 0."},
		{formOf(`"Model"=w`), "model", "A part of the form is named like model but for its case; engines may take it for that."},
		{formOf(`"model"=`), "model", "model must not be empty."},
		{formOf("\"model\"=w\n"), "model", "model must not hold control characters."},
		{formOf("\"model\"=\xff"), "model", "model must be UTF-8."},
		{formOf(`"model"=` + strings.Repeat("w", maxModel+1)), "model", "model is too long."},
		{formOf(`"model"=w`, `"model"=w`), "model", "model is there twice."},
		{formOf(`"model"=w`, `"stream"=true`, `"stream"=true`), "stream", "stream is there twice."},
		{formOf(`"model"; filename="a"=w`), "model", "model must not be a file."},
		{formOf(`"model"; filename*=UTF-8''a=w`), "model", "model must not be a file."},
		{formOf(`"model"=w`, `"stream"=yes`), "stream", "stream must be true or false."},
		{formOf(`"model"=w`, `"stream"=`), "stream", "stream must be true or false."},
		{formOf(`"model"=w`, `"timeout_ms"=`), "timeout_ms", "timeout_ms must be an integer of 0 or more."},
		{formOf(`"model"=w`, `"timeout_ms"=-1`), "timeout_ms", "timeout_ms must be an integer of 0 or more."},
		{formOf(`"model"=w`, `"timeout_ms"=86400001`), "timeout_ms", "timeout_ms is too large."},
		{formOf(`"model"=w`, `"max_duration_ms"=1.5`), "max_duration_ms", "max_duration_ms must be an integer of 0 or more."},
		{formOf(`"model"=w`, `"request_id"=`), "request_id", "request_id must not be empty."},
		{formOf(`"model"=w`, `"request_id"=..`), "request_id", "request_id must not be one dot or two dots."},
		{"\r\n" + model, "", "The form does not begin with its boundary, at byte 0."},
		{"preamble\r\n" + model, "", "The form does not begin with its boundary, at byte 0."},
		{`{"model":"w"}`, "", "The form does not begin with its boundary, at byte 0."},
		{model + "epilogue", "", "The form goes on behind its last boundary, at byte 61."},
		{model + "\r\n", "", "The form goes on behind its last boundary, at byte 61."},
		{strings.TrimSuffix(model, "--x--\r\n"), "", "The form ends without its last boundary, at byte 56."},
		{strings.TrimSuffix(model, "--\r\n"), "", "The form has a bad boundary line, at byte 59."},
		{strings.Replace(model, "--x\r\n", "--x \r\n", 1), "", "The form has a bad boundary line, at byte 3."},
		{strings.Replace(model, "--x\r\n", "--x\n", 1), "", "The form has a bad boundary line, at byte 3."},
		{formOf("\"model\"=w", "\"file\"=a--xb"), "", "The form has its boundary inside of a part, at byte 109."},
		{formOf("\"model\"=w", "\"file\"=abcd--x"), "", "The form has its boundary inside of a part, at byte 112."},
		{formOf("\"model\"=w", "\"file\"=a\r\n--xb"), "", "The form has a bad boundary line, at byte 114."},
		{formOf("\"model\"=--x"), "", "The form has its boundary inside of a part, at byte 53."},
		{"--x\r\n\r\nw\r\n--x--\r\n", "", "The form has a part whose header does not end, at byte 5."},
		{"--x\r\nA: " + strings.Repeat("a", maxPartHeader) + "\r\n\r\nw\r\n--x--\r\n", "", "The form has a part whose header does not end, at byte 5."},
		{"--x\r\nA: b\r\n\r\nw\r\n--x--\r\n", "", "The form has a part without a Content-Disposition, at byte 5."},
		{disposition + "a\r\nContent-Disposition: form-data; name=model\r\n\r\nw\r\n--x--", "", "The form has a part with two Content-Disposition lines, at byte 5."},
		{disposition + "model\r\nContent-Transfer-Encoding: base64\r\n\r\nd2g=\r\n--x--", "", "The form has a part with a Content-Transfer-Encoding, at byte 5."},
		{disposition + "model\r\n X: y\r\n\r\nw\r\n--x--", "", "The form has a part with a bad header line, at byte 5."},
		{disposition + "model\r\nX: y\nZ: z\r\n\r\nw\r\n--x--", "", "The form has a part with a bad header line, at byte 5."},
		{disposition + "\"a\x13\"\r\n\r\nw\r\n--x--", "", "The form has a part with a bad header line, at byte 5."},
		{disposition + "model\r\nX\r\n\r\nw\r\n--x--", "", "The form has a part with a bad header line, at byte 5."},
		{strings.Repeat(disposition+"a\r\n\r\n\r\n", maxParts) + model, "", "The form has more than 256 parts."},
	} {
		r, fault := Scan(Transcriptions, formType, []byte(c.body))
		if fault == nil {
			t.Errorf("%.200q was taken: %+v", c.body, r)
			continue
		}
		if diff := cmp.Diff(&Error{Code: CodeInvalidRequest, Message: c.message, Param: c.param}, fault); diff != "" {
			t.Errorf("%.200q:\n%s", c.body, diff)
		}
	}
}

func TestFormDispositionFaults(t *testing.T) {
	t.Parallel()
	for _, value := range []string{``, `form-data`, `form-data; `, `attachment; name=model`, `form-data; name`, `form-data; name=`,
		`form-data; name="model`, `form-data; name="model"x`, `form-data; name=model; name=model`, `form-data; name="mo\del"`,
		`form-data; name*=UTF-8''model`, `form-data; name*0=mod; name*1=el`, `form-data; name=model; name*=x`, `form-data;; name=model`,
		`form-data, name=model`, `form-data; name= model`, `form-data; name=mo del`, `form-data; filename*0="a"; name=model`,
		`form-data; filename="a\\"; name=model`, `form-data; filename="a\\"; x="; name=model`, `form-data; filename="a\"; name=model`, `form-data; =a; name=model`, `name=model`} {
		body := "--x\r\nContent-Disposition: " + value + "\r\n\r\nw\r\n--x--\r\n"
		_, fault := Scan(Transcriptions, formType, []byte(body))
		if fault == nil || fault.Message != "The form has a part with a bad Content-Disposition, at byte 5." {
			t.Errorf("%s: %v", value, fault)
		}
	}
}

func TestFormBoundary(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("b", maxBoundary)
	for boundary, ok := range map[string]bool{
		`x`: true, `"x"`: true, `----WebKitFormBoundary7MA4YWxk`: true, `"a b'()+_,-./:=?"`: true, long: true, `x; charset=utf-8`: true,
		``: false, `""`: false, long + "b": false, `"a "`: false, `"a*"`: false, `a; boundary=b`: false, `"é"`: false, `a b`: false, `"a`: false,
	} {
		contentType := "multipart/form-data; boundary=" + boundary
		_, params, _ := mime.ParseMediaType(contentType)
		body := "--" + params["boundary"] + "\r\nContent-Disposition: form-data; name=model\r\n\r\nw\r\n--" + params["boundary"] + "--\r\n"
		if _, fault := Scan(Transcriptions, contentType, []byte(body)); (fault == nil) != ok || fault != nil && fault.HTTPStatus() != 400 {
			t.Errorf("boundary=%s: %v; want it taken: %v", boundary, fault, ok)
		}
	}
	for _, contentType := range []string{"multipart/form-data", "multipart/form-data; boundary*=us-ascii''x", "multipart/form-data; boundary*0=x"} {
		if _, fault := Scan(Transcriptions, contentType, []byte(formOf(`"model"=w`))); fault == nil || fault.HTTPStatus() != 400 {
			t.Errorf("%s: %v", contentType, fault)
		}
	}
}

// part is a part as the standard library reads it.
type part struct{ Name, Disposition, Type, Content string }

// partsOf reads a form with mime/multipart.
func partsOf(contentType string, body []byte) (parts []part, err error) {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, err
	}
	reader := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		p, err := reader.NextPart()
		if err == io.EOF {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(p)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{p.FormName(), p.Header.Get("Content-Disposition"), p.Header.Get("Content-Type"), string(content)})
	}
}

// checkForm holds a form that was taken against the standard library's reading of it, before and
// after Strip.
func checkForm(t *testing.T, contentType string, body []byte, r Request) {
	t.Helper()
	parts, err := partsOf(contentType, body)
	if err != nil {
		t.Fatalf("%q was taken; mime/multipart says %v", body, err)
	}
	var want []part
	models := 0
	for _, p := range parts {
		switch p.Name {
		case "request_id", "timeout_ms", "max_duration_ms":
			continue
		case "model":
			if models++; p.Content != r.Model {
				t.Fatalf("model %q; mime/multipart says %q", r.Model, p.Content)
			}
		}
		want = append(want, p)
	}
	stripped, changed := r.Strip(body)
	got, err := partsOf(contentType, stripped)
	if diff := cmp.Diff(want, got); err != nil || diff != "" || changed != (len(want) != len(parts)) || models > 1 || (models == 0) != (r.Model == "") {
		t.Fatalf("%q became %q, %v: %v\n%s", body, stripped, changed, err, diff)
	}
	again, fault := Scan(r.Endpoint, contentType, stripped)
	if fault != nil || again.cutCount != 0 || again.Model != r.Model {
		t.Fatalf("%q became %q: %v", body, stripped, fault)
	}
}

// What the standard library writes is taken, whatever is in the file.
func TestFormRandom(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		fields := []string{"request_id", "timeout_ms", "max_duration_ms", "file", "prompt", "a b\"c", "stream"}
		rng.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		fields = append(fields[:rng.IntN(len(fields)+1)], "model")
		rng.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		for _, name := range fields {
			value := map[string]string{"model": "w", "stream": "true"}[name]
			if name == "file" {
				h := textproto.MIMEHeader{}
				h.Set("Content-Disposition", `form-data; name="file"; filename="a.wav"`)
				h.Set("Content-Type", "audio/wav")
				p, _ := w.CreatePart(h)
				_, _ = p.Write([]byte(strings.Repeat("\r\n--", rng.IntN(3)) + fmt.Sprint(rng.Uint64()) + strings.Repeat("\r\n", rng.IntN(3))))
				continue
			}
			if value == "" {
				value = fmt.Sprint(rng.IntN(1000))
			}
			_ = w.WriteField(strings.ReplaceAll(name, `"`, ""), value)
		}
		_ = w.Close()
		r, fault := Scan(Transcriptions, w.FormDataContentType(), b.Bytes())
		if fault != nil {
			t.Fatalf("%q: %v", b.String(), fault)
		}
		checkForm(t, w.FormDataContentType(), b.Bytes(), r)
	}
}
