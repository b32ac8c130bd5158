package openai

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// MediaURL is where a body has an engine fetch an image, a sound, a video or a document.
type MediaURL struct {
	// Field is the name of the field that has the URL.
	Field string
	// Host is the host of the URL in lower case: a name without a dot at its end, or an address
	// without brackets. Empty: the URL has a form that servers read in different ways.
	Host string
	// Port is the port of the URL, or that of its scheme, http or https. 0: there is none.
	Port uint16
	// BehindAt says that only llama.cpp looks for a host there, which is behind an @ in the path.
	BehindAt bool
}

// mediaURLs is what a scan finds in fields for the URLs of media.
type mediaURLs struct {
	// local says that a URL names a file of the engine's machine, stored that a part has the id of
	// a stored file.
	local, stored bool
	urls          []MediaURL
	// kept has the URLs if there are several.
	kept map[MediaURL]bool
	// anyDocument says that the field may be that of any document, whose image is often the name
	// of a file somewhere else. Only a text that begins with a slash or a dot is a path then.
	anyDocument bool
}

// maxMediaURLs bounds the URLs of media of a request, of which those from the same host count once.
// A small body may have a URL for each 30 bytes.
const maxMediaURLs = 1024

// noteMedia takes over what a scan has found.
func (r *Request) noteMedia(m *mediaURLs) *Error {
	if r.MediaURLs = m.urls; len(m.urls) > maxMediaURLs {
		return Errorf(CodeInvalidRequest, "The request has media from more than %d hosts.", maxMediaURLs)
	}
	if m.local {
		r.Guarded |= guardOf([]byte(localMedia))
	}
	if m.stored {
		r.Guarded |= guardOf([]byte(storedFile))
	}
	return nil
}

// urlFields are the fields of parts, and of what is embedded or ranked, that have URLs of media.
var urlFields = [...]string{"image", "image_url", "video", "video_url", "audio", "audio_url", "file", "file_url", "document_url",
	"input_audio", "input_video"}

// urlField returns the field of urlFields with this name, in any case; empty for other names.
func urlField(name []byte) string {
	name = lower(name)
	for _, field := range urlFields {
		if string(name) == field {
			return field
		}
	}
	return ""
}

// sourceField returns the name of a field of a request for images or speech that has the images to
// be changed or the voice to be imitated. The name may be in any case. The result is empty for
// other names. The names are those of OpenAI, of the servers of vLLM and SGLang for images and
// speech, and of LocalAI. In a form they may end with [].
func sourceField(name []byte) string {
	name = lower(bytes.TrimSuffix(name, []byte("[]")))
	for _, field := range [...]string{"image", "images", "image_url", "mask", "mask_url", "url", "reference_url", "file_url", "video", "audio",
		"ref_audio", "reference_audio", "references", "file", "files", "ref_images"} {
		if string(name) == field {
			return field
		}
	}
	return ""
}

// sources reads the value of a field of a request for images or speech. It is a URL, or a list of
// URLs and of objects that have URLs or ids of stored files.
func (s *scanner) sources(field string, depth int) {
	r := &s.json
	switch c := r.Kind(); {
	case c == '[' && depth > 0:
		for more := r.Open('['); more; more = r.More('[') {
			s.sources(field, depth-1)
		}
	case c == '{' && depth > 0:
		for more := r.Open('{'); more; more = r.More('{') {
			if name := r.Name(); string(lower(name)) == storedFile {
				s.found.readID(r)
			} else {
				s.sources(sourceField(name), depth-1)
			}
		}
	case c == '"' && field != "":
		raw, _ := r.RawText()
		s.found.add(field, raw, r.Escaped())
	default:
		r.Skip()
	}
}

// read reads the value of a field for a URL: a string, or an object with a field url or data.
// Sounds and videos have data, which llama.cpp also takes for a URL, and files have file_data. A
// base64 text there may begin with a slash. A nil m, or an empty field, only skips the value.
func (m *mediaURLs) read(r *jsonscan.Reader, field string) {
	switch c := r.Kind(); {
	case m == nil || field == "":
		r.Skip()
	case c == '"':
		raw, _ := r.RawText()
		m.add(field, raw, r.Escaped())
	case c == '{':
		for more := r.Open('{'); more; more = r.More('{') {
			switch string(lower(r.Name())) {
			case "url", "file_url":
				raw, _ := r.RawText()
				m.add(field, raw, r.Escaped())
			case "data", "file_data":
				if raw, _ := r.RawText(); mayBeURL(raw) {
					m.add(field, raw, r.Escaped())
				}
			case storedFile:
				m.readID(r)
			default:
				r.Skip()
			}
		}
	default:
		r.Skip()
	}
}

// readID reads the value of a field for the id of a stored file.
func (m *mediaURLs) readID(r *jsonscan.Reader) {
	if !r.Null() {
		r.Skip()
		if m != nil {
			m.stored = true
		}
	}
}

// add adds the string of a field, as it stands in JSON.
func (m *mediaURLs) add(field string, raw []byte, escaped bool) {
	if len(raw) == 0 || isDataURL(raw) {
		return
	}
	if len(raw) > maxPath {
		if mayBeURL(raw) { // servers accept no URL that long, but engines open files for it
			m.local = m.local || !isWebURL(raw)
			m.keep(MediaURL{Field: field})
		}
		return
	}
	if escaped {
		raw, _ = jsonscan.Unescape(nil, raw)
	}
	text := bytes.TrimFunc(raw, func(r rune) bool { return r <= ' ' })
	scheme, rest, isURL := bytes.Cut(text, []byte(":"))
	switch {
	case !isURL:
		m.local = m.local || isPath(text) && (!m.anyDocument || text[0] == '/' || text[0] == '.')
	case !isScheme(scheme):
		m.local = true
		m.keep(MediaURL{Field: field})
	case isLocalScheme(scheme):
		m.local = true
	case !isDataURL(text):
		m.addHosts(field, string(scheme), rest)
	}
}

// addHosts adds the host of a URL of which rest is what follows the colon of its scheme. llama.cpp
// takes what is behind the first @ for the host, also if the @ is in the path.
func (m *mediaURLs) addHosts(field, scheme string, rest []byte) {
	authority, isAuthority := bytes.CutPrefix(rest, []byte("//"))
	path := bytes.IndexByte(authority, '/')
	if path < 0 {
		path = len(authority)
	}
	u := MediaURL{Field: field}
	if isAuthority {
		u.setHost(scheme, string(authority[:path]))
	}
	m.keep(u)
	if at := bytes.IndexByte(authority[path:], '@'); at >= 0 && u.Host != "" {
		host, _, _ := bytes.Cut(authority[path+at+1:], []byte("/"))
		u.BehindAt = true
		u.setHost(scheme, string(host))
		m.keep(u)
	}
}

// keep keeps a URL unless it is like an earlier one, or there are too many.
func (m *mediaURLs) keep(u MediaURL) {
	n := len(m.urls)
	if n > maxMediaURLs || n > 0 && m.urls[n-1] == u || m.kept[u] {
		return
	}
	if n == 1 {
		m.kept = map[MediaURL]bool{m.urls[0]: true}
	}
	if m.urls = append(m.urls, u); n > 0 {
		m.kept[u] = true
	}
}

func (u *MediaURL) setHost(scheme, authority string) {
	if u.Host, u.Port = hostPort(authority); u.Port != 0 || u.Host == "" {
		return
	}
	switch strings.ToLower(scheme) {
	case "http":
		u.Port = 80
	case "https":
		u.Port = 443
	}
}

// hostPort reads the authority of a URL. The host is empty unless all readers of URLs agree on it.
// The authority must be a name, an IPv4 address with four numbers or an IPv6 address in brackets,
// and maybe a port. Some readers take a backslash for a slash, decode escapes, or take 127.1 and
// 0x7f000001 for addresses.
func hostPort(authority string) (host string, port uint16) {
	text, inBrackets := strings.CutPrefix(authority, "[")
	if inBrackets {
		var closed bool
		if host, text, closed = strings.Cut(text, "]"); !closed || !strings.Contains(host, ":") {
			return "", 0
		}
	} else {
		end := strings.IndexByte(text, ':')
		if end < 0 {
			end = len(text)
		}
		host, text = text[:end], text[end:]
	}
	if number, ok := strings.CutPrefix(text, ":"); ok {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || len(number) > len("65535") {
			return "", 0
		}
		port = uint16(n)
	} else if text != "" {
		return "", 0
	}
	if inBrackets {
		address, err := netip.ParseAddr(host)
		if err != nil || address.Zone() != "" {
			return "", 0
		}
		return address.Unmap().String(), port
	}
	if host = strings.TrimSuffix(strings.ToLower(host), "."); !isHostName(host) {
		return "", 0
	}
	return host, port
}

// isHostName reports whether a text in lower case is the name of a host or an IPv4 address with
// four numbers.
func isHostName(text string) bool {
	if len(text) > 253 {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
		last = label
	}
	if last[0] < '0' || last[0] > '9' {
		return true
	}
	_, err := netip.ParseAddr(text)
	return err == nil
}

// isDataURL reports whether a string is a data URL. Its scheme may be in capitals, but has no
// escapes.
func isDataURL(raw []byte) bool {
	const scheme = "data:"
	return len(raw) >= len(scheme) && bytes.EqualFold(raw[:len(scheme)], []byte(scheme))
}

// isWebURL reports whether a long string is a URL of the web, as it stands in JSON.
func isWebURL(raw []byte) bool {
	return bytes.EqualFold(raw[:6], []byte("https:")) || bytes.EqualFold(raw[:5], []byte("http:"))
}

// maxPath is how many bytes a path may have as JSON may write it: Linux allows 4,096, and an escape
// takes at most six bytes for one.
const maxPath = 6 * 4096

// isPath reports whether a string without a colon is a path, and not base64. Base64 has neither a
// dot nor a slash at its beginning, unless it is a JPEG.
func isPath(text []byte) bool {
	if bytes.HasPrefix(text, []byte("/9j/")) {
		text = text[1:]
	}
	return len(text) > 0 && (text[0] == '/' || bytes.IndexByte(text, '.') >= 0)
}

// mayBeURL reports whether a string, as it stands in JSON, has a colon, maybe as an escape. Base64
// has none, although .NET writes its plus signs as escapes.
func mayBeURL(raw []byte) bool {
	return bytes.IndexByte(raw, ':') >= 0 || bytes.Contains(raw, []byte(`\u003a`)) || bytes.Contains(raw, []byte(`\u003A`))
}

// isLocalScheme reports whether URLs with a scheme such as file, or hls+file, name local files.
func isLocalScheme(scheme []byte) bool {
	last := scheme[bytes.LastIndexByte(scheme, '+')+1:]
	return slices.Contains(localSchemes, strings.ToLower(string(last)))
}

// localSchemes are the schemes of URLs that name local files. Python also takes <URL:file:///a> for
// such a URL. FFmpeg opens files by all of the others, and SGLang has it open the URLs of videos
// whose path is that of a file.
var localSchemes = []string{"file", "url", "async", "cache", "concat", "concatf", "crypto", "fd", "pipe", "subfile", "unix"}

// isScheme reports whether a text has the form of the scheme of a URL.
func isScheme(text []byte) bool {
	for i, c := range text {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || !('0' <= c && c <= '9' || c == '+' || c == '.' || c == '-')) {
			return false
		}
	}
	return len(text) > 0
}
