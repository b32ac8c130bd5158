package delta

// Part is one text of an answer. Its Text is the whole text.
type Part struct {
	Delta
	// At is where the string stands in the answer.
	At Span
	// Of is the index in Answer.Endings of the choice, or of the response, that the text belongs
	// to.
	Of int
}

// Ending is how a choice, or a response, has ended.
type Ending struct {
	Choice int
	// Finish is the value of a choice's finish_reason, or of a response's status.
	Finish Span
	// Details is the value of a response's incomplete_details.
	Details Span
	// Duplicates are values that repeat the texts in other forms, which are not read here: log
	// probabilities, token ids, audio.
	Duplicates []Span
	// Close is the offset of the bracket that closes the choice, or the response.
	Close int
	// Response means that this is a response of the Responses API and no choice.
	Response bool
}

// Answer reads an answer that did not stream: of a chat, of a completion or of the Responses API.
// The zero Answer is ready.
type Answer struct {
	// Parts are the texts that are not empty, in the order in which they stand.
	Parts   []Part
	Endings []Ending
	// Model is the name of the model in the answer; empty: none.
	Model string

	r Reader
}

// Read reads an answer. The fields are valid until the next call. Read reports whether the body is
// a JSON object.
func (a *Answer) Read(body []byte) bool {
	a.Parts, a.Endings, a.Model = nil, nil, ""
	a.r.reset(body)
	if a.r.json.Kind() != '{' {
		return false
	}
	a.members()
	if !a.r.json.Valid() {
		a.Parts, a.Endings = nil, nil
		return false
	}
	return true
}

func (a *Answer) members() {
	js := &a.r.json
	whole := Ending{}
	for more := js.Open('{'); more; more = js.More('{') {
		switch string(a.r.json.Name()) {
		case "choices":
			a.choices()
		case "model":
			a.Model = string(a.r.text())
		case "output":
			whole.Response = true
			whole.Duplicates = append(whole.Duplicates, a.output()...)
		case "status":
			whole.Finish = a.r.json.Value()
		case "incomplete_details":
			whole.Details = a.r.json.Value()
		default:
			js.Skip()
		}
	}
	if !whole.Response {
		return
	}
	whole.Close = js.Pos() - 1
	for i := range a.Parts {
		if a.Parts[i].Of == ofResponse {
			a.Parts[i].Of = len(a.Endings)
		}
	}
	a.Endings = append(a.Endings, whole)
}

// ofResponse is Part.Of until the response is read to its end.
const ofResponse = -1

func (a *Answer) choices() {
	js := &a.r.json
	if js.Kind() != '[' {
		js.Skip()
		return
	}
	position := 0
	for more := js.Open('['); more; more = js.More('[') {
		if js.Kind() == '{' {
			a.choice(position)
		} else {
			js.Skip()
		}
		position++
	}
}

func (a *Answer) choice(index int) {
	js, r := &a.r.json, &a.r
	e := Ending{}
	for more := js.Open('{'); more; more = js.More('{') {
		switch string(r.json.Name()) {
		case "index":
			index = r.index()
		case "message":
			r.delta()
		case "text":
			r.add(Text, r.text())
		case "finish_reason":
			e.Finish = r.json.Value()
		case "logprobs", "token_ids":
			r.duplicates = append(r.duplicates, r.json.Value())
		default:
			js.Skip()
		}
	}
	e.Choice, e.Close = index, js.Pos()-1
	e.Duplicates = a.moveParts(index, len(a.Endings))
	a.Endings = append(a.Endings, e)
}

// moveParts moves the deltas that the reader has read to Parts, and returns the duplicates.
func (a *Answer) moveParts(choice, ending int) (duplicates []Span) {
	r := &a.r
	for i, d := range r.deltas {
		d.Choice = choice
		if len(d.Text) > 0 {
			a.Parts = append(a.Parts, Part{d, r.at[i], ending})
		}
	}
	duplicates = append(duplicates, r.duplicates...)
	r.deltas, r.at, r.duplicates = r.deltas[:0], r.at[:0], r.duplicates[:0]
	return duplicates
}

// output reads the output items of a response.
func (a *Answer) output() (duplicates []Span) {
	js := &a.r.json
	if js.Kind() != '[' {
		js.Skip()
		return nil
	}
	position := 0
	for more := js.Open('['); more; more = js.More('[') {
		if js.Kind() == '{' {
			a.item(position)
		} else {
			js.Skip()
		}
		position++
	}
	return a.moveParts(0, ofResponse)
}

// item reads an output item: a message, reasoning or a tool call.
func (a *Answer) item(position int) {
	js, r := &a.r.json, &a.r
	first := len(r.deltas)
	var typ []byte
	d := Delta{Kind: ToolCall, Tool: position}
	var at Span
	for more := js.Open('{'); more; more = js.More('{') {
		switch string(r.json.Name()) {
		case "type":
			typ = r.text()
		case "content", "summary":
			a.content()
		case "arguments", "input":
			d.Text = r.text()
			at = r.span
		case "call_id":
			d.ID = r.text()
		case "name":
			d.Name = r.text()
		case "encrypted_content":
			r.duplicates = append(r.duplicates, r.json.Value())
		default:
			js.Skip()
		}
	}
	if string(typ) == "reasoning" {
		for i := first; i < len(r.deltas); i++ {
			r.deltas[i].Kind = Reasoning
		}
	}
	if len(d.Text) > 0 {
		r.push(d, at)
	}
}

// content reads the parts of an item.
func (a *Answer) content() {
	js, r := &a.r.json, &a.r
	if js.Kind() != '[' {
		r.content(Text)
		return
	}
	for more := js.Open('['); more; more = js.More('[') {
		if js.Kind() == '{' {
			a.part()
		} else {
			js.Skip()
		}
	}
}

func (a *Answer) part() {
	js, r := &a.r.json, &a.r
	for more := js.Open('{'); more; more = js.More('{') {
		switch string(r.json.Name()) {
		case "text":
			r.add(Text, r.text())
		case "refusal":
			r.add(Refusal, r.text())
		case "logprobs":
			r.duplicates = append(r.duplicates, r.json.Value())
		default:
			js.Skip()
		}
	}
}
