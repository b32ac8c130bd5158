package openai

import "testing"

func TestDisguisedFields(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Model", "MODEL", "mod\\u0045l", "Stream", "\u017ftream", "Max_Tokens", "max_to\u212aens", "REQUEST_ID", "Timeout_ms", "N"} {
		body := `{"model":"m","` + name + `":1}`
		if _, fault := Scan(Chat, "application/json", []byte(body)); fault == nil || fault.Code != CodeInvalidRequest || fault.Param == "" {
			t.Errorf("%s: %v", name, fault)
		}
	}
	for _, name := range []string{"Models", "modelName", "streamable", "User", "\u0130nput2", "tools"} {
		body := `{"model":"m","` + name + `":1}`
		if _, fault := Scan(Chat, "application/json", []byte(body)); fault != nil {
			t.Errorf("%s: %v", name, fault)
		}
	}
	for _, name := range []string{"Previous_response_id", "PREVIOUS_RESPONSE_ID", "previous_re\u017fponse_id", "Conversation"} {
		for e, isField := range map[Endpoint]bool{Responses: true, InputTokens: true, Compact: true, Chat: false} {
			body := `{"model":"m","input":"x","` + name + `":"resp_1"}`
			if _, fault := Scan(e, "application/json", []byte(body)); isField != (fault != nil) {
				t.Errorf("%s of %s: %v", name, e, fault)
			}
		}
	}
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\nContent-Disposition: form-data; name=\"Model\"\r\n\r\nx\r\n--b--\r\n"
	if _, fault := Scan(Transcriptions, "multipart/form-data; boundary=b", []byte(form)); fault == nil || fault.Param != "model" {
		t.Errorf("form: %v", fault)
	}
}
