package openai

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mediaBodies has a body for each place where engines look for the URL of media, with %s for the
// URL, by the field that an error names.
var mediaBodies = map[Endpoint]map[string][]string{
	Chat: {
		"image_url": {`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"http://text/"},{"type":"image_url","image_url":{"detail":"low","url":"%s"}}]}]}`,
			`{"model":"m","messages":[{"role":"tool","content":[{"image_url":"%s"}]}]}`},
		"video_url":   {`{"messages":[{"content":[{"video_url":{"url":"%s"},"type":"video_url"}],"role":"user"}],"model":"m"}`},
		"audio_url":   {`{"model":"m","messages":[{"role":"user","content":[{"type":"audio_url","audio_url":"%s"}]}]}`},
		"input_audio": {`{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"%s"}}]}]}`},
		"file":        {`{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"filename":"http:a","file_data":"%s"}}]}]}`},
	},
	Responses: {
		"image_url": {`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"%s"}]}]}`,
			`{"model":"m","input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"%s"}]}]}`,
			`{"model":"m","input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"%s"}}]}`},
		"file_url": {`{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_url":"%s"}]}]}`},
	},
	InputTokens: {"image_url": {`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"%s"}]}]}`}},
	Messages: {"source": {`{"model":"m","messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"url","url":"%s"}}]}}]}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"%s"}}]}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"document","source":{"type":"url","url":"%s"}}]}]}]}`}},
	CountTokens: {"source": {`{"model":"m","messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"url":"%s"}}]}}]}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"%s"}}]}]}`}},
	Embeddings: {
		"input":     {`{"model":"m","input":["%s"],"modality":"image"}`, `{"modality":"audio","model":"m","input":"%s","messages":[]}`},
		"image":     {`{"model":"m","input":["http://text/",{"image":"%s"}]}`, `{"model":"m","input":{"image":"%s"}}`},
		"image_url": {`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"%s"}}]}]}`},
	},
	Rerank: {
		"image":     {`{"model":"m","query":"http://text/","documents":["http://text/",{"text":"http://text/","image":"%s"}]}`},
		"video_url": {`{"model":"m","query":"x","documents":{"content":[{"type":"video_url","video_url":{"url":"%s"}}]}}`},
	},
	Score:      {"image_url": {`{"model":"m","text_1":"http://text/","text_2":{"content":[{"type":"image_url","image_url":{"url":"%s"}}]}}`}},
	Tokenize:   {"image_url": {`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"%s"}}]}]}`}},
	Images:     {"file": {`{"model":"m","prompt":"x","file":"%s"}`}, "ref_images": {`{"model":"m","prompt":"x","ref_images":["%s"]}`}, "image": {`{"model":"m","prompt":"http://text/","image":"%s"}`, `{"model":"m","prompt":"x","image":["%s"]}`}},
	ImageEdits: {"image_url": {`{"model":"m","prompt":"x","images":[{"image_url":"%s"}]}`}, "mask": {`{"model":"m","prompt":"x","mask":"%s"}`}},
	Speech:     {"ref_audio": {`{"model":"m","input":"http://text/","voice":"x","ref_audio":"%s"}`}},
}

// The host of a URL of media is found wherever engines look for one, and no text is taken for one.
func TestX14_MediaURLsAreFound(t *testing.T) {
	t.Parallel()
	for e, fields := range mediaBodies {
		for field, bodies := range fields {
			for _, body := range bodies {
				want := []MediaURL{{Field: field, Host: "a.example.com", Port: 443}}
				r, fault := Scan(e, "application/json", []byte(strings.ReplaceAll(body, "%s", `https:\/\/a.example.com\/b.png`)))
				if fault != nil || !slices.Equal(r.MediaURLs, want) || r.Guarded != 0 {
					t.Errorf("%v %s: %+v, %b, %v", e, body, r.MediaURLs, r.Guarded, fault)
				}
				r, fault = Scan(e, "application/json", []byte(strings.ReplaceAll(body, "%s", `data:image/png;base64,aHR0cDovL2E=`)))
				if fault != nil || len(r.MediaURLs) != 0 {
					t.Errorf("%v %s with a data URL: %+v, %v", e, body, r.MediaURLs, fault)
				}
			}
		}
	}
	for name, want := range map[string]string{"url": "url", `"url[]"`: "url", "image_url": "image_url", "prompt": "", `"file"; filename="a.wav"`: ""} {
		r, fault := Scan(Transcriptions, formType, []byte(formOf("model=m", name+"=http://a/b")))
		var got string
		if len(r.MediaURLs) == 1 {
			got = r.MediaURLs[0].Field
		}
		if fault != nil || got != want {
			t.Errorf("the part %s: %+v, %v", name, r.MediaURLs, fault)
		}
	}
}

// Decoders of JSON that ignore case, as Go's does, find URLs by names in other spellings, too.
func TestX14_DisguisedMediaURLs(t *testing.T) {
	t.Parallel()
	for body, e := range map[string]Endpoint{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","Image_URL":{"url":"%s"}}]}]}`: Chat,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"URL":"%s"}}]}]}`: Chat,
		`{"model":"m","messages":[{"role":"user","content":"","Content":[{"image_url":{"url":"%s"}}]}]}`:       Chat,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"Url":"%s"}}]}]}`:        Messages,
		`{"model":"m","input":[{"CONTENT":[{"VIDEO":"%s"}]}]}`:                                                 Embeddings,
		`{"model":"m","prompt":"x","images":[{"IMAGE_URL":"%s"}]}`:                                             ImageEdits,
	} {
		r, fault := Scan(e, jsonType, []byte(strings.ReplaceAll(body, "%s", "http://a.example.com/")))
		if fault != nil || len(r.MediaURLs) != 1 || r.MediaURLs[0].Host != "a.example.com" {
			t.Errorf("%s: %+v, %v", body, r.MediaURLs, fault)
		}
	}
	for body, e := range map[string]Endpoint{
		`{"model":"m","MESSAGES":[]}`:                                  Embeddings,
		`{"model":"m","prompt":"x","Image":"http://a/"}`:               Images,
		`{"model":"m","query":"x","document\u017f":[]}`:                Rerank,
		`{"model":"m","input":"x","voice":"x","Ref_Audio":"http://a"}`: Speech,
		`{"model":"m","messages":[],"Tools":[]}`:                       Chat,
	} {
		if _, fault := Scan(e, jsonType, []byte(body)); fault == nil || !strings.Contains(fault.Message, "but for its case") {
			t.Errorf("%s: %v", body, fault)
		}
	}
	if r, _ := Scan(Chat, jsonType, []byte(`{"model":"m","messages":[],"tools":[{"type":"mcp","Server_Url":"http://a"}]}`)); r.Guarded != guardOf([]byte(hostedTools)) {
		t.Errorf("a tool: %b", r.Guarded)
	}
}

// The texts to be embedded are URLs only if Infinity is told so.
func TestX14_TextsToBeEmbedded(t *testing.T) {
	t.Parallel()
	for _, modality := range []string{`"text"`, "null", `""`, "7"} {
		r, fault := Scan(Embeddings, jsonType, []byte(`{"model":"m","input":["http://a/"],"modality":`+modality+`}`))
		if fault != nil || len(r.MediaURLs) > 0 {
			t.Errorf("%s: %+v, %v", modality, r.MediaURLs, fault)
		}
	}
}

// The image of a document to be ranked may be the name of a file somewhere else.
func TestX14_DocumentsNameFiles(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]bool{"photo.jpg": false, "photos/a.jpg": false, "/etc/a.jpg": true, "../a.jpg": true, "file:///a.jpg": true} {
		r, fault := Scan(Rerank, "application/json", []byte(`{"model":"m","query":"x","documents":[{"text":"a","image":"`+image+`"}]}`))
		if fault != nil || (r.Guarded == guardOf([]byte(localMedia))) != want {
			t.Errorf("%s: %b, %v", image, r.Guarded, fault)
		}
	}
	for _, file := range []string{"/docs/a.pdf", `C:\\docs\\a.pdf`, "http://wiki/a"} { // no reranker fetches it
		r, fault := Scan(Rerank, jsonType, []byte(`{"model":"m","query":"x","documents":[{"text":"a","file":"`+file+`"}]}`))
		if fault != nil || r.Guarded != 0 || len(r.MediaURLs) > 0 {
			t.Errorf("the file %s: %b, %v, %v", file, r.Guarded, r.MediaURLs, fault)
		}
	}
	if r, _ := Scan(Embeddings, "application/json", []byte(`{"model":"m","input":[{"image":"photo.jpg"}]}`)); r.Guarded != guardOf([]byte(localMedia)) {
		t.Error("an image to be embedded may be a file of the engine")
	}
}

// A host counts only if all readers of URLs find the same one.
func TestX14_HostsOfMediaURLs(t *testing.T) {
	t.Parallel()
	host := func(name string, port uint16) []MediaURL {
		return []MediaURL{{Field: "image_url", Host: name, Port: port}}
	}
	unreadable := host("", 0)
	for url, want := range map[string][]MediaURL{
		"https://example.com/a.png": host("example.com", 443), "HTTP://Example.COM.:8080": host("example.com", 8080), `http:\/\/\u0061.b/c`: host("a.b", 80),
		"http://10.0.0.5/": host("10.0.0.5", 80), "http://[::ffff:169.254.169.254]:80/": host("169.254.169.254", 80), "http://[FD00::1]/": host("fd00::1", 80),
		"gs://bucket/a.png": host("bucket", 0), "rtsp://cam:554/x": host("cam", 554), "hls+http://a/": host("a", 0), " http://a/": host("a", 80), `\thttp://a/\n`: host("a", 80),
		"http://a_b-c.de/x:y@2": {{Field: "image_url", Host: "a_b-c.de", Port: 80}, {Field: "image_url", BehindAt: true}},
		"http://a.de/x@b:81/@c": {{Field: "image_url", Host: "a.de", Port: 80}, {Field: "image_url", Host: "b", Port: 81, BehindAt: true}},

		"http://user@host/": unreadable, "http://a:b@c/": unreadable, `http://a\\@b/`: unreadable, `http:\\\\a/`: unreadable, "http:a/b": unreadable, "http:///a": unreadable,
		"http://": unreadable, "http://a?b/": unreadable, "http://a#b/": unreadable, "http://127.1/": unreadable, "http://2130706433/": unreadable,
		"http://0x7f.0.0.1/": unreadable, "http://0177.0.0.1/": unreadable, "http://1.2.3.4.5/": unreadable, "http://a..b/": unreadable, "http://.a/": unreadable,
		"http://%31/": unreadable, "http://ａ/": unreadable, "http://a b/": unreadable, "http://a:/": unreadable, "http://a:0/": unreadable, "http://a:65536/": unreadable, "http://a:000080/": unreadable,
		"http://a:+80/": unreadable, "http://[::1": unreadable, "http://[::1]x/": unreadable, "http://[fe80::1%25eth0]/": unreadable, "http://[10.0.0.1]/": unreadable,
		`ht\ntp://a/`: unreadable, "mailto:a": unreadable, "http://" + strings.Repeat("a", 254) + "/": unreadable, "http://a/" + strings.Repeat("b", maxPath): unreadable,

		"data:image/png;base64,AA": nil, "DATA:,http://a": nil, `\u0064ata:,x`: nil, "iVBORw0KGgo": nil, "//a/b.png": nil, "a/b.png": nil, "": nil, "file:///a": nil,
		strings.Repeat("a", maxPath+1): nil, "data:image/png;base64," + strings.Repeat("a", maxPath): nil,
	} {
		r, fault := Scan(Chat, "application/json", []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`))
		if diff := cmp.Diff(want, r.MediaURLs, cmp.Transformer("", func(u MediaURL) string { return fmt.Sprintf("%#v", u) })); diff != "" || fault != nil {
			t.Errorf("%.100q: %v %s", url, fault, diff)
		}
	}
}

// What follows a local file, in any field, does not hide it.
func TestX14_ALocalFileIsNotHidden(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("b", maxPath)
	for _, other := range []string{"iVBORw0KGgo", "http://a/", "http://a/" + long, "data:,", "x:y"} {
		for _, images := range []string{`{"image":"/etc/a"},{"image":"` + other + `"}`, `{"image":"` + other + `"},{"image":"/etc/a"}`} {
			r, fault := Scan(Embeddings, jsonType, []byte(`{"model":"m","input":[`+images+`]}`))
			if fault != nil || r.Guarded != guardOf([]byte(localMedia)) {
				t.Errorf("%.60s: %b, %v", images, r.Guarded, fault)
			}
		}
	}
	for url, want := range map[string]string{"http://a/" + long: "", "HTTPS://a/" + long: "", "file:///a/" + long: localMedia} {
		r, fault := Scan(Embeddings, jsonType, []byte(`{"model":"m","input":[{"image":"`+url+`"}]}`))
		if fault != nil || r.Guarded != guardOf([]byte(want)) || len(r.MediaURLs) != 1 {
			t.Errorf("%.20s: %b, %+v, %v", url, r.Guarded, r.MediaURLs, fault)
		}
	}
}

// Values that are no URLs are none, and the rest of the body is read.
func TestX14_ValuesThatAreNoURLs(t *testing.T) {
	t.Parallel()
	for body, e := range map[string]Endpoint{
		`"prompt":"x","image":7`: Images, `"prompt":"x","image":[7,null,[],{}]`: Images, `"prompt":"x","image":null`: Images,
		`"prompt":"x","image":[{"note":"http://a/","image_url":7}]`: Images, `"prompt":"x","mask":{"file_id":null}`: Images,
		`"messages":[{"role":"user","content":[{"image_url":7},{"image_url":[]},{"image_url":null},{"image_url":{"detail":"http://a/","url":null}}]}]`: Chat,
		`"messages":[{"role":"user","content":[{"file":{"file_id":null,"file_data":"data:,"}}]}]`:                                                      Chat,
	} {
		r, fault := Scan(e, jsonType, []byte(`{`+body+`,"model":"m"}`))
		if fault != nil || len(r.MediaURLs) != 0 || r.Guarded != 0 || r.Model != "m" {
			t.Errorf("%s: %+v, %b, %q, %v", body, r.MediaURLs, r.Guarded, r.Model, fault)
		}
	}
	for _, colon := range []string{":", `\u003a`, `\u003A`} {
		r, fault := Scan(Chat, jsonType, []byte(`{"model":"m","messages":[{"role":"user","content":[{"input_audio":{"data":"http`+colon+`//a/"}}]}]}`))
		if fault != nil || len(r.MediaURLs) != 1 || r.MediaURLs[0].Host != "a" {
			t.Errorf("data with %s: %+v, %v", colon, r.MediaURLs, fault)
		}
	}
}

// A scheme is a letter, and then letters, digits and three signs (RFC 3986, section 3.1).
func TestX14_SchemesOfMediaURLs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"a": true, "z": true, "A": true, "Z": true, "a0": true, "a9": true, "a+b": true, "a.b": true, "ms-appx": true,
		"": false, "0a": false, "9a": false, "+a": false, ".a": false, "-a": false, "a_b": false, "a/": false, "a;b": false, "a[": false, "a{": false, "a@": false, "a`": false, "é": false, "a b": false} {
		if isScheme([]byte(text)) != want {
			t.Errorf("%q is a scheme: %v", text, !want)
		}
	}
}

// A body of many URLs takes little memory.
func TestX14_MediaOfManyHosts(t *testing.T) {
	t.Parallel()
	for n, fails := range map[int]bool{maxMediaURLs: false, maxMediaURLs + 1: true, 20 * maxMediaURLs: true} {
		var same, turns, other strings.Builder
		for i := range n {
			fmt.Fprintf(&same, `,{"image":"http://a.b/%d"}`, i)
			fmt.Fprintf(&turns, `,{"image":"http://a%d.b/"}`, i%3)
			fmt.Fprintf(&other, `,{"image":"http://a%d.b/"}`, i)
		}
		r, fault := Scan(Embeddings, "application/json", []byte(`{"model":"m","input":[`+same.String()[1:]+`]}`))
		if fault != nil || len(r.MediaURLs) != 1 {
			t.Errorf("%d URLs of one host: %d, %v", n, len(r.MediaURLs), fault)
		}
		r, fault = Scan(Embeddings, "application/json", []byte(`{"model":"m","input":[`+turns.String()[1:]+`]}`))
		if fault != nil || len(r.MediaURLs) != 3 {
			t.Errorf("%d URLs of three hosts in turn: %d, %v", n, len(r.MediaURLs), fault)
		}
		if _, fault := Scan(Embeddings, "application/json", []byte(`{"model":"m","input":[`+other.String()[1:]+`]}`)); (fault != nil) != fails {
			t.Errorf("%d hosts: %v", n, fault)
		}
	}
}

// Rules permit the hosts that they name, and public those of the internet.
func TestX14_MediaHosts(t *testing.T) {
	t.Parallel()
	rules := func(list ...string) MediaHosts {
		h, err := ParseMediaHosts(list)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	public := "example.com a.b.example.co.uk bucket.s3.amazonaws.com user.github.io 8.8.8.8 [2606:4700::1]"
	inside := "localhost redis redis.default redis.default.svc redis.default.svc.cluster.local metadata.google.internal metadata.goog metadata.tencentyun.com printer.local a.onion a.lan router.home.arpa " +
		"127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.100.100.200 168.63.129.16 192.0.0.192 0.0.0.0 224.0.0.1 255.255.255.255 " +
		"[::1] [::] [fd00:ec2::254] [fe80::1] [64:ff9b::a9fe:a9fe] [2002:7f00:1::] [2001:db8::1] [::ffff:10.0.0.1] com"
	refuses := func(h MediaHosts, host string) bool {
		u := MediaURL{Field: "image"}
		u.setHost("https", host)
		_, refused := h.Refused([]MediaURL{u}, false)
		return refused
	}
	for host := range strings.FieldsSeq(public) {
		if refuses(rules("public"), host) || !refuses(rules(), host) || !refuses(MediaHosts{}, host) || refuses(rules("*"), host) {
			t.Errorf("the host %s is not public", host)
		}
	}
	for host := range strings.FieldsSeq(inside) {
		if !refuses(rules("public"), host) || refuses(rules("*"), host) {
			t.Errorf("the host %s is public", host)
		}
	}
	some := rules("images.lan", "*.Example.com", "*.store:9000", "10.0.0.5", "[fd00::5]:8080", "10.1.0.0/16", "fd01::/64", "fd02::1")
	for _, host := range strings.Fields("images.lan images.lan:81 a.example.com a.b.example.com s3.store:9000 10.0.0.5 10.0.0.5:99 [fd00::5]:8080 10.1.255.255 [fd01::9] [fd02::1]") {
		if refuses(some, host) {
			t.Errorf("%s is refused", host)
		}
	}
	for _, host := range strings.Fields("lan a.images.lan example.com s3.store store:9000 10.0.0.6 [fd00::5] 10.2.0.0 [fd01:0:0:1::] badexample.com user@images.lan") {
		if !refuses(some, host) {
			t.Errorf("%s is permitted", host)
		}
	}
	if some != rules("images.lan", "*.Example.com", "*.store:9000", "10.0.0.5", "[fd00::5]:8080", "10.1.0.0/16", "fd01::/64", "fd02::1") || some == rules("images.lan") {
		t.Error("rules do not compare")
	}
	behind := []MediaURL{{Field: "image", Host: "example.com"}, {Field: "image", Host: "redis", BehindAt: true}}
	h := rules("public")
	if _, refused := h.Refused(behind, false); refused {
		t.Error("the path of a URL counts for an engine that does not look there")
	}
	if u, refused := h.Refused(behind, true); !refused || !strings.Contains(u.String(), "redis") {
		t.Errorf("the host that llama.cpp finds is permitted: %v", u)
	}
	r, fault := Scan(Chat, jsonType, []byte(`{"model":"m","messages":[{"role":"user","content":[{"image_url":"https://cdn.example.com/npm/a@1.0/b.png"}]}]}`))
	if u, refused := h.Refused(r.MediaURLs, true); fault != nil || !refused || !strings.Contains(u.String(), "%40") {
		t.Errorf("the refusal of a version in a path is for %v", u)
	}
	for _, bad := range strings.Split("|a b|*.|*|http://a|a/b|10.0.0.1/8|a:b|*.10.0.0.1:x|*.10.0.0.1|*.10.0.0.1:80|Public|::ffff:10.0.0.0/104|user@a", "|") {
		if _, err := ParseMediaHosts([]string{bad}); (err == nil) != (bad == "*") {
			t.Errorf("the rule %q: %v", bad, err)
		}
	}
}

// The rules are read once for a request, and not again for each of its URLs.
func TestX14_ManyRulesForManyURLs(t *testing.T) {
	var list []string
	for i := range 50 {
		list = append(list, fmt.Sprintf("*.cdn%d.example.com:443", i))
	}
	h, err := ParseMediaHosts(append(list, "public"))
	if err != nil {
		t.Fatal(err)
	}
	urls := make([]MediaURL, maxMediaURLs)
	for i := range urls {
		urls[i] = MediaURL{Field: "image", Host: "a.example.org", Port: 443}
	}
	if n := testing.AllocsPerRun(2, func() { h.Refused(urls, true) }); n > 4*maxMediaURLs {
		t.Errorf("%v allocations for %d URLs", n, len(urls))
	}
}
