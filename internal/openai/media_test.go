package openai

import "testing"

// TestR12_MediaOutput: what answers that are no text count as.
func TestR12_MediaOutput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		endpoint Endpoint
		body     string
		want     int
	}{
		{Chat, `{"model":"m","n":3,"size":"1024x1024"}`, 0},
		{Tokenize, `{"model":"m","prompt":"x"}`, 0},
		{Images, `{"model":"m","prompt":"x"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"1024x1024","n":2}`, 2048},
		{Images, `{"model":"m","prompt":"x","size":"512x512"}`, 256},
		{Images, `{"model":"m","prompt":"x","size":"auto"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"9999999x1"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"0x-1"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"0x512"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"512x0"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"512"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"1x8193"}`, 1024},
		{Images, `{"model":"m","prompt":"x","size":"8192x8192"}`, 65536},
		{Images, `{"model":"m","prompt":"x","size":"1x1"}`, 1},
		{Images, `{"model":"m","prompt":"x","size":{}}`, 1024},
		{Images, `{"model":"m","n":16384,"size":"8192x8192"}`, maxGenerations},
		{Speech, `{"model":"m","input":"abc"}`, 81},
	} {
		r, fault := Scan(c.endpoint, "application/json", []byte(c.body))
		if got := r.MediaOutput(); fault != nil || got != c.want {
			t.Errorf("%v %s: %d tokens, want %d (%v)", c.endpoint, c.body, got, c.want, fault)
		}
	}
	form := "--x\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n3\r\n" +
		"--x\r\nContent-Disposition: form-data; name=\"size\"\r\n\r\n512x1024\r\n" +
		"--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n\r\nimage\r\n--x--\r\n"
	r, fault := Scan(ImageEdits, "multipart/form-data; boundary=x", []byte(form))
	if got := r.MediaOutput(); fault != nil || got != 3*512 {
		t.Errorf("a form: %d tokens, want %d (%v)", got, 3*512, fault)
	}
	if r, fault := Scan(Transcriptions, "multipart/form-data; boundary=x", []byte(form)); fault != nil || r.Choices != 0 {
		t.Errorf("n of a transcription is read: %d (%v)", r.Choices, fault)
	}
	if _, fault := Scan(Images, "application/json", []byte(`{"n":-1}`)); fault == nil || fault.Param != "n" {
		t.Errorf("n of -1: %v", fault)
	}
}
