package delta

// Part is one text of an answer. Its Text is the whole of it.
type Part struct {
	Delta
	// At is where the string stands.
	At Span
	// Of is the place in Endings of what it belongs to.
	Of int
}

// Ending is how a choice ended, or a response.
type Ending struct {
	Choice int
	// Finish is the value of finish_reason, of a response that of status.
	Finish Span
	// Details is the value of a response's incomplete_details.
	Details Span
	// Also are values that say the same again in other forms, or that cannot be read here: log probabilities, the ids of tokens, audio.
	Also []Span
	// Close is where the bracket is that closes the choice, or the response.
	Close int
	// Response says that it is a response of the Responses API and no choice.
	Response bool
}

// Answer reads an answer that did not stream: of a chat, of a completion, of the Responses API.
type Answer struct {
	// Parts are the texts that are not empty, in the order in which they stand.
	Parts   []Part
	Endings []Ending
	// Model is what the answer says of its model.
	Model string

	r Reader
}

// Read reads an answer. What it gives holds until the next call. It is false when the body is no JSON object.
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
			whole.Also = append(whole.Also, a.output()...)
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
	place := 0
	for more := js.Open('['); more; more = js.More('[') {
		if js.Kind() == '{' {
			a.choice(place)
		} else {
			js.Skip()
		}
		place++
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
			r.also = append(r.also, r.json.Value())
		default:
			js.Skip()
		}
	}
	e.Choice, e.Close = index, js.Pos()-1
	e.Also = a.take(index, len(a.Endings))
	a.Endings = append(a.Endings, e)
}

// take makes parts of what the reader has read.
func (a *Answer) take(choice, ending int) (also []Span) {
	r := &a.r
	for i, d := range r.deltas {
		d.Choice = choice
		if len(d.Text) > 0 {
			a.Parts = append(a.Parts, Part{d, r.at[i], ending})
		}
	}
	also = append(also, r.also...)
	r.deltas, r.at, r.also = r.deltas[:0], r.at[:0], r.also[:0]
	return also
}

func (a *Answer) output() (also []Span) {
	js := &a.r.json
	if js.Kind() != '[' {
		js.Skip()
		return nil
	}
	place := 0
	for more := js.Open('['); more; more = js.More('[') {
		if js.Kind() == '{' {
			a.item(place)
		} else {
			js.Skip()
		}
		place++
	}
	return a.take(0, ofResponse)
}

// item reads an output item: a message, reasoning, a tool call.
func (a *Answer) item(place int) {
	js, r := &a.r.json, &a.r
	first := len(r.deltas)
	var typ []byte
	d := Delta{Kind: ToolCall, Tool: place}
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
			r.also = append(r.also, r.json.Value())
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
			r.also = append(r.also, r.json.Value())
		default:
			js.Skip()
		}
	}
}
