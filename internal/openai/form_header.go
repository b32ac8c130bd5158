package openai

import (
	"bytes"
	"strings"
)

// partName reads the header of a form's part. It returns the name of the part, whether the part is
// a file, and what is wrong with the header; empty: nothing.
func partName(header []byte) (name []byte, isFile bool, fault string) {
	found, charset := false, ""
	for more := true; more; {
		var line []byte
		line, header, more = bytes.Cut(header, []byte("\r\n"))
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || !isToken(key) || bytes.ContainsFunc(value, isControl) {
			return nil, false, "has a part with a bad header line"
		}
		switch value = bytes.Trim(value, " \t"); strings.ToLower(string(key)) {
		case "content-disposition":
			if found {
				return nil, false, "has a part with two Content-Disposition lines"
			}
			if name, isFile, found = disposition(value); !found {
				return nil, false, "has a part with a bad Content-Disposition"
			}
		case "content-type":
			charset = string(value)
		case "content-transfer-encoding":
			switch strings.ToLower(string(value)) {
			case "7bit", "8bit", "binary":
			default:
				return nil, false, "has a part with a Content-Transfer-Encoding"
			}
		}
	}
	if !found {
		return nil, false, "has a part without a Content-Disposition"
	}
	if !isFile && CheckCharset(charset) != nil {
		return nil, false, "has a part in another charset than utf-8"
	}
	return name, isFile, ""
}

// disposition reads the value of a Content-Disposition: form-data; name="…"; filename="…".
func disposition(value []byte) (name []byte, isFile, ok bool) {
	kind, rest, _ := bytes.Cut(value, []byte(";"))
	if !strings.EqualFold(string(bytes.Trim(kind, " \t")), "form-data") {
		return nil, false, false
	}
	named := false
	for len(rest) > 0 {
		var key string
		var v []byte
		if key, v, rest, ok = parameter(rest); !ok {
			return nil, false, false
		}
		switch key {
		case "name":
			// A name with an escape in it reads differently to different readers.
			if named || bytes.IndexByte(v, '\\') >= 0 {
				return nil, false, false
			}
			name, named = v, true
		case "filename", "filename*":
			isFile = true
		default:
			if strings.HasPrefix(key, "name*") || strings.HasPrefix(key, "filename*") {
				return nil, false, false
			}
		}
	}
	return name, isFile, named
}

// parameter reads key=token or key="quoted" from the front, up to the next semicolon. It returns
// keys in lower case, and quoted values with their escapes.
func parameter(b []byte) (key string, value, rest []byte, ok bool) {
	k, b, found := bytes.Cut(b, []byte("="))
	k = bytes.Trim(k, " \t")
	if !found || !isToken(k) {
		return "", nil, nil, false
	}
	key = strings.ToLower(string(k))
	if len(b) == 0 || b[0] != '"' {
		value, rest, _ = bytes.Cut(b, []byte(";"))
		value = bytes.TrimRight(value, " \t")
		return key, value, rest, isToken(value)
	}
	end := 1
	for end < len(b) && b[end] != '"' {
		if b[end] == '\\' && end+1 < len(b) && b[end+1] == '"' {
			end++
		}
		end++
	}
	// Two backslashes before a quote: some readers see an escaped quote there, others the end.
	if end >= len(b) || bytes.Contains(b[:end+1], []byte(`\\"`)) {
		return "", nil, nil, false
	}
	value, rest = b[1:end], bytes.TrimLeft(b[end+1:], " \t")
	if len(rest) > 0 && rest[0] != ';' {
		return "", nil, nil, false
	}
	return key, value, bytes.TrimPrefix(rest, []byte(";")), true
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// isToken reports whether b is a token (RFC 9110, 5.6.2).
func isToken(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return len(b) > 0
}
