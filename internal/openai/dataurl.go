package openai

import "bytes"

// Bodies with media that are no parts of messages have them as data URLs: images to be embedded or
// edited, a voice to be imitated. Such a string is no text for the model.

const (
	// maxURLHead bounds what stands before the data of a URL, in bytes.
	maxURLHead = 128
	urlBase64  = ";base64,"
)

// urlStart is how a string with a data URL begins. mediaTypes are the kinds of data that count, as
// JSON may write them.
var (
	urlStart   = []byte(`"data:`)
	mediaTypes = [...][]byte{[]byte("image"), []byte("audio"), []byte("video")}
)

// dataURLs counts the data URLs of images, audio and video in a body that is valid JSON.
func (s *scanner) dataURLs() {
	for i := 0; ; {
		at := bytes.Index(s.body[i:], urlStart)
		if at < 0 {
			return
		}
		start := i + at
		i = start + len(urlStart)
		end := bytes.IndexByte(s.body[i:], '"')
		if end < 0 {
			return
		}
		end += i
		if !isEscaped(s.body, start) && !isEscaped(s.body, end) && isMediaURL(s.body[i:end]) {
			s.mediaBytes += end - start
			s.req.mediaParts++
			i = end + 1
		}
	}
}

// isEscaped reports whether the quote at i is one inside of a string.
func isEscaped(body []byte, i int) bool {
	n := i
	for n > 0 && body[n-1] == '\\' {
		n--
	}
	return (i-n)%2 == 1
}

// isMediaURL reports whether the rest of a data URL is that of an image, audio or video. Some
// writers of JSON put a backslash before each slash.
func isMediaURL(rest []byte) bool {
	head := rest[:min(len(rest), maxURLHead)]
	if !bytes.Contains(head, []byte(urlBase64)) {
		return false
	}
	for _, t := range mediaTypes {
		after, ok := bytes.CutPrefix(head, t)
		if ok && bytes.HasPrefix(bytes.TrimPrefix(after, []byte(`\`)), []byte("/")) {
			return true
		}
	}
	return false
}
