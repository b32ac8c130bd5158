package openai

import (
	"strings"
	"testing"
)

// TestX14_Charset: an engine must not read another text than Sluice has read.
func TestX14_Charset(t *testing.T) {
	t.Parallel()
	for contentType, want := range map[string]bool{
		"application/json": true, "application/json;charset=utf-8": true, "Application/JSON; Charset=\"UTF-8\"": true, "application/json; charset=utf8": true,
		"application/json; profile=x": true, "application/json;": true,
		"application/json; charset=utf-7": false, "application/json; charset=utf-16le": false, "application/json; charset=iso-8859-1": false,
		"application/json; charset=": false, "application/json; charset": false, "application/json; charset = utf-7": false,
		"application/json; charset=utf-8; charset=utf-7": false, "application/json; charset*=utf-8''utf-7": false,
		"application/json; charset*0=utf; charset*1=-7": false, "application/json; x=\"; charset=utf-7": false, "text/plain; charset=utf-8": false,
	} {
		fault := CheckContentType(Chat, contentType)
		if ok := fault == nil; ok != want || !ok && (fault.HTTPStatus() != 415 || fault.Code != CodeInvalidRequest) {
			t.Errorf("%s: %v", contentType, fault)
		}
	}
}

// TestX14_CharsetOfForms: a form names its charset in three places.
func TestX14_CharsetOfForms(t *testing.T) {
	t.Parallel()
	part := func(header string) string {
		return "--x\r\nContent-Disposition: form-data; name=model" + header + "\r\n\r\nw\r\n--x--\r\n"
	}
	for body, want := range map[string]bool{
		part(""): true, part("\r\nContent-Type: text/plain; charset=utf-8"): true, part("\r\nContent-Type: text/plain; charset=utf-7"): false,
		formOf(`"model"=w`, `"_charset_"=utf-8`): true, formOf(`"model"=w`, `"_charset_"=utf-7`): false,
	} {
		if _, fault := Scan(Transcriptions, formType, []byte(body)); (fault == nil) != want || fault != nil && !strings.Contains(fault.Message, "utf-8") {
			t.Errorf("%q: %v", body, fault)
		}
	}
	if _, fault := Scan(Transcriptions, formType+"; charset=utf-16", []byte(part(""))); fault == nil || fault.HTTPStatus() != 415 {
		t.Errorf("the form's own charset: %v", fault)
	}
}
