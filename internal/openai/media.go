package openai

import (
	"bytes"
	"cmp"
	"strconv"
)

// What answers that are no text count as, in tokens. Most engines report no usage for them.
const (
	// imageArea is the area in pixels of an image of tokensPerImage tokens. OpenAI's models take
	// about as many for an image of medium quality.
	imageArea      = 1024 * 1024
	tokensPerImage = 1024
	// maxImageSide bounds the sides of an image that are believed, in pixels.
	maxImageSide = 8192
	// speechTokensPerByte: a token of text is about four bytes and a quarter of a second of speech.
	// Models of speech make about 50 tokens a second.
	speechTokensPerByte = 3
)

// MediaOutput returns how many tokens the answer counts as because it is speech or images. Speech
// counts as 3 for each byte of the text to be spoken. An image counts as 1,024 in proportion to its
// area. An image without a good size counts as 1024×1024. The result is 0 for all other endpoints.
func (r *Request) MediaOutput() int {
	switch {
	case r.Endpoint == Speech:
		return min(r.promptBytes*speechTokensPerByte, maxGenerations)
	case r.Endpoint.Draws():
		each := cmp.Or(r.imageTokens, tokensPerImage)
		return min(each*r.Generations(), maxGenerations)
	}
	return 0
}

// imageTokens returns what an image of a size such as 1024x1536 counts as, in tokens. It is 0 for
// anything else, such as auto.
func imageTokens(size []byte) int {
	width, height, _ := bytes.Cut(size, []byte("x"))
	w, errWidth := strconv.Atoi(string(width))
	h, errHeight := strconv.Atoi(string(height))
	if errWidth != nil || errHeight != nil || w <= 0 || h <= 0 || w > maxImageSide || h > maxImageSide {
		return 0
	}
	return max(w*h*tokensPerImage/imageArea, 1)
}
