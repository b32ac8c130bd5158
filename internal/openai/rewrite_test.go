package openai

import (
	"strings"
	"testing"
)

func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, body, model, want string }{
		{"alone", `{"model":"alias"}`, "m", `{"model":"m"}`},
		{"spaces stay", "{ \"model\" :\t\"alias\" , \"n\": 1 }", "longer/name", "{ \"model\" :\t\"longer/name\" , \"n\": 1 }"},
		{"escaped", `{"mod\u0065l":"ali\u0061s","n":1}`, "m", `{"mod\u0065l":"m","n":1}`},
		{"to be escaped", `{"model":"alias"}`, `a"b`, `{"model":"a\"b"}`},
		{"options before", `{"request_id":"a","timeout_ms":5,"model":"alias"}`, "m", `{"model":"m"}`},
		{"options behind", `{"model":"alias","request_id":"a"}`, "m", `{"model":"m"}`},
		{"options around", `{"request_id":"a","model":"alias","n":1,"timeout_ms":5}`, "m", `{"model":"m","n":1}`},
		{"only the field", `{"messages":[{"model":"alias"}],"model":"alias"}`, "m", `{"messages":[{"model":"alias"}],"model":"m"}`},
		{"the same name", `{"model":"alias"}`, "alias", `{"model":"alias"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := mustScan(t, Chat, c.body)
			got, changed := r.Rewrite([]byte(c.body), c.model)
			if string(got) != c.want || changed != (c.want != c.body) {
				t.Errorf("%q, %v; want %q", got, changed, c.want)
			}
		})
	}
}

func TestRewriteForm(t *testing.T) {
	t.Parallel()
	part := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	body := part("request_id", "a") + part("file", "alias") + part("model", "alias") + part("timeout_ms", "5") + "--b--\r\n"
	want := part("file", "alias") + part("model", "whisper") + "--b--\r\n"
	r, fault := Scan(Transcriptions, "multipart/form-data; boundary=b", []byte(body))
	if fault != nil {
		t.Fatal(fault)
	}
	got, changed := r.Rewrite([]byte(body), "whisper")
	if !changed || string(got) != want {
		t.Errorf("%s\nwant %s", strings.ReplaceAll(string(got), "\r\n", "|"), strings.ReplaceAll(want, "\r\n", "|"))
	}
}

// An edit of images in JSON is read and written as JSON.
func TestR12_EditOfImagesInJSON(t *testing.T) {
	t.Parallel()
	image := "data:image/png;base64," + strings.Repeat("QUJD", 1000)
	body := `{"request_id":"a","model":"alias","images":[{"image_url":"` + image + `"}],"prompt":"a hat","n":2,"size":"512x512","stream":true}`
	r, fault := Scan(ImageEdits, "application/json", []byte(body))
	if fault != nil {
		t.Fatal(fault)
	}
	if !r.Stream || r.RequestID != "a" || r.Generations() != 2 || r.MediaOutput() != 512 || r.MediaParts() != 1 || r.PromptBytes() > 300 {
		t.Errorf("%+v: %d answers, %d tokens, %d media, %d bytes of text", r, r.Generations(), r.MediaOutput(), r.MediaParts(), r.PromptBytes())
	}
	want := strings.Replace(strings.Replace(body, `"request_id":"a",`, "", 1), "alias", "m", 1)
	if got, _ := r.Rewrite([]byte(body), "m"); string(got) != want {
		t.Errorf("%s", got)
	}
	unnamed := `{"prompt":"a hat"}`
	if r, fault = Scan(ImageEdits, "application/json", []byte(unnamed)); fault != nil {
		t.Fatal(fault)
	}
	if got, _ := r.Rewrite([]byte(unnamed), "m"); string(got) != `{"model":"m","prompt":"a hat"}` {
		t.Errorf("%s", got)
	}
	if pieces := r.Pieces([]byte(unnamed)); len(pieces) != 1 {
		t.Errorf("%q", pieces)
	}
}

// A body without a model gets the one of the field Model, and stays JSON whatever else it has.
func TestR5_RewriteNamesTheModel(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{}`:                                      `{"model":"m"}`,
		` { } `:                                   ` {"model":"m" } `,
		`{"messages":[{"model":"x"}]}`:            `{"model":"m","messages":[{"model":"x"}]}`,
		"{\n  \"n\": 1\n}":                        "{\"model\":\"m\",\n  \"n\": 1\n}",
		`{"request_id":"a"}`:                      `{"model":"m"}`,
		`{ "request_id":"a" , "timeout_ms":5 }`:   `{"model":"m"}`,
		`{"request_id":"a","n":1}`:                `{"model":"m","n":1}`,
		`{"n":1,"request_id":"a"}`:                `{"model":"m","n":1}`,
		`{"timeout_ms":5,"n":1,"request_id":"a"}`: `{"model":"m","n":1}`,
	} {
		r := mustScan(t, Chat, body)
		if r.Model != "" {
			t.Errorf("%s: model %q", body, r.Model)
		}
		r.Model = "m"
		got, changed := r.Rewrite([]byte(body), "m")
		if !changed || string(got) != want {
			t.Errorf("%s became %s, want %s", body, got, want)
		}
		if again := mustScan(t, Chat, string(got)); again.Model != "m" {
			t.Errorf("%s names %q", got, again.Model)
		}
	}
}

func TestR5_RewriteNamesTheModelOfAForm(t *testing.T) {
	t.Parallel()
	body := "--b\r\nContent-Disposition: form-data; name=\"request_id\"\r\n\r\na\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx\r\n--b--\r\n"
	const form = "multipart/form-data; boundary=b"
	r, fault := Scan(Transcriptions, form, []byte(body))
	if fault != nil || r.Model != "" {
		t.Fatal(r.Model, fault)
	}
	r.Model = "whisper"
	got, _ := r.Rewrite([]byte(body), "whisper")
	again, fault := Scan(Transcriptions, form, got)
	if fault != nil || again.Model != "whisper" || again.RequestID != "" || !strings.Contains(string(got), `filename="a"`) {
		t.Errorf("%q, %v", got, fault)
	}
}
