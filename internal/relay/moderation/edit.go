package moderation

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
	"github.com/sluice-gateway/sluice/internal/openai/leaves"
)

// filtered is the finish_reason of a choice that a rule has ended.
const filtered = `"content_filter"`

// Rewrite returns the data of the event of this number, counted from 1, as it may be sent: without
// what rules forbid. send is false if nothing of the event may be sent. Call it for each event that
// is sent, in their order.
func (f *Filter) Rewrite(event int64, data []byte) (rewritten []byte, send bool) {
	if len(f.ended) == 0 && len(f.removed) == 0 {
		return data, true
	}
	root := f.endingOf(leaves.Root)
	if root != nil && (event > root.cut.event || event == root.cut.event && (root.cut.path == nil || root.cut.keep == 0) && !f.whole) {
		return nil, false
	}
	full := f.reader.Full
	f.reader.Full = true
	readable := f.reader.Read(data)
	f.reader.Full = full
	if !readable {
		return data, f.whole || root == nil && isEndMarker(data)
	}
	if root != nil && len(f.reader.Choices) > 0 { // a rule has ended them before it has judged them
		return nil, false
	}
	e := editor{f: f, event: event, data: data}
	send = e.editChoices()
	if root != nil && event == root.cut.event {
		root.told = true
		e.cutLeaves(leaves.Root, &root.cut)
		e.removeSpares(leaves.Root)
		e.endResponse()
	}
	e.remove()
	return applyEdits(data, e.edits), send
}

// isEndMarker reports whether the data is OpenAI's end marker, which Skip has counted.
func isEndMarker(data []byte) bool { return string(bytes.TrimSpace(data)) == "[DONE]" }

// endingOf returns how a rule has ended the choice. nil: none has.
func (f *Filter) endingOf(choice int) *ending {
	for i := range f.ended {
		if f.ended[i].choice == choice {
			return &f.ended[i]
		}
	}
	return nil
}

// edit replaces a span of the data. An empty span makes it an insertion.
type edit struct {
	at   jsonscan.Span
	with string
}

// editor rewrites one event, which the reader of f has read.
type editor struct {
	f     *Filter
	event int64
	data  []byte
	edits []edit
	// dropped are the indexes in Choices of the choices that are removed.
	dropped []int
}

// editChoices removes the choices that have ended, and cuts those that end with this event. It
// returns false if nothing is left that is worth sending.
func (e *editor) editChoices() (send bool) {
	choices := e.f.reader.Choices
	for i := range choices {
		c := &choices[i]
		end := e.f.endingOf(c.Index)
		switch {
		case end == nil || e.event < end.cut.event:
		case e.event > end.cut.event && !e.f.whole || end.told && !e.f.whole:
			e.dropped = append(e.dropped, i)
		case end.cut.path == nil:
			end.told = true
			e.edits = append(e.edits, edit{c.At, emptyChoice(c)})
		default:
			end.told = true
			e.cutLeaves(c.Index, &end.cut)
			e.removeSpares(c.Index)
			e.finishChoice(c)
		}
	}
	if len(e.dropped) == 0 {
		return true
	}
	e.dropChoices()
	return len(e.dropped) < len(choices) || e.f.reader.HasUsage
}

// dropChoices removes elements of the list of choices, each with a comma beside it.
func (e *editor) dropChoices() {
	choices := e.f.reader.Choices
	for _, i := range e.dropped {
		at := choices[i].At
		switch {
		case i > 0 && !allDropped(e.dropped, i):
			at.From = choices[i-1].At.To
		case i+1 < len(choices):
			at.To = choices[i+1].At.From
		case i > 0: // all are dropped, and the one before has taken the comma
		}
		e.edits = append(e.edits, edit{at, ""})
	}
}

// allDropped reports whether all choices before the one of this index are dropped.
func allDropped(dropped []int, index int) bool { return slices.Index(dropped, index) == index }

// emptyChoice returns a choice that says only that a rule has ended it.
func emptyChoice(c *leaves.Choice) string {
	output := `"delta":{}`
	switch c.Member {
	case "message":
		output = `"message":{"role":"assistant","content":""}`
	case "text":
		output = `"text":""`
	}
	return `{"index":` + strconv.Itoa(c.Index) + `,` + output + `,"finish_reason":` + filtered + `}`
}

func (e *editor) finishChoice(c *leaves.Choice) {
	if c.Finish != (jsonscan.Span{}) {
		e.edits = append(e.edits, edit{c.Finish, filtered})
		return
	}
	end, comma := c.At.To-1, ","
	if len(bytes.TrimSpace(e.data[c.At.From+1:end])) == 0 {
		comma = ""
	}
	e.edits = append(e.edits, edit{jsonscan.Span{From: end, To: end}, comma + `"finish_reason":` + filtered})
}

// endResponse sets the status of a whole response of the Responses API.
func (e *editor) endResponse() {
	r := e.f.reader.Response
	if r == nil {
		return
	}
	member := func(at jsonscan.Span, name, value string) {
		if at == (jsonscan.Span{}) {
			at, value = jsonscan.Span{From: r.Close, To: r.Close}, `,"`+name+`":`+value
		}
		e.edits = append(e.edits, edit{at, value})
	}
	member(r.Status, "status", `"incomplete"`)
	member(r.Details, "incomplete_details", `{"reason":`+filtered+`}`)
}

// cutLeaves cuts the text at c, and empties the texts of the choice that come after it.
func (e *editor) cutLeaves(choice int, c *cut) {
	found, left := false, c.keep
	for i := range e.f.reader.Leaves {
		l := &e.f.reader.Leaves[i]
		if l.Choice != choice || l.Path.Class == leaves.Meta || l.Path.Class == leaves.Tokens || l.Path.IsName {
			continue
		}
		keep := 0
		switch {
		case l.Path == c.path:
			found = true
			keep, left = keptBytes(l.Text, left, c.inBytes)
		case !found && e.has(choice, c.path):
			continue // it comes before the cut
		}
		if keep < len(l.Text) {
			e.edits = append(e.edits, edit{l.At, string(jsonscan.AppendQuoted(nil, l.Text[:keep]))})
		}
	}
}

// has reports whether the event has a leaf of the choice at this path.
func (e *editor) has(choice int, path *leaves.Path) bool {
	return slices.ContainsFunc(e.f.reader.Leaves, func(l leaves.Leaf) bool { return l.Path == path && l.Choice == choice })
}

// keptBytes returns how many bytes of a piece may be kept, if the pieces from here on may keep this
// much of the text. It also returns how much is left for the next piece. A piece that begins with
// the rest of a character may keep less than it could.
func keptBytes(piece []byte, much int64, inBytes bool) (keep int, left int64) {
	if much <= 0 {
		return 0, 0
	}
	if inBytes {
		keep = int(min(much, int64(len(piece))))
		for keep > 0 && keep < len(piece) && !utf8.RuneStart(piece[keep]) {
			keep--
		}
		return keep, much - int64(len(piece))
	}
	for ; much > 0 && keep < len(piece); much-- {
		_, n := utf8.DecodeRune(piece[keep:])
		keep += n
	}
	return keep, much
}

// removeSpares removes what repeats the texts of a choice in other forms.
func (e *editor) removeSpares(choice int) {
	for _, s := range e.f.reader.Spares {
		if s.Choice != choice {
			continue
		}
		nothing := "null"
		if e.data[s.At.From] == '[' {
			nothing = "[]"
		}
		e.edits = append(e.edits, edit{s.At, nothing})
	}
}

// remove removes the values of the event that are listed in removed.
func (e *editor) remove() {
	f, here := e.f, false
	for _, r := range f.removed {
		if r.event != e.event {
			continue
		}
		if r.tokens {
			e.removeSpares(r.choice)
			continue
		}
		here = true
	}
	f.removed = slices.DeleteFunc(f.removed, func(r removal) bool { return r.event <= e.event })
	if !here {
		return
	}
	for i := range f.reader.Leaves {
		switch l := &f.reader.Leaves[i]; {
		case l.Path.Class == leaves.Opaque:
			e.edits = append(e.edits, edit{l.At, "null"})
		case l.Path.Class == leaves.Meta && !leaves.IsConstant(l.Text) && f.judgeAlone(l) >= 0:
			e.edits = append(e.edits, edit{l.At, `""`})
		}
	}
}

// applyEdits returns the data with the edits. Of edits that overlap the one that begins first, and
// of those the longest, counts.
func applyEdits(data []byte, edits []edit) []byte {
	if len(edits) == 0 {
		return data
	}
	slices.SortStableFunc(edits, func(x, y edit) int {
		return cmp.Or(cmp.Compare(x.at.From, y.at.From), cmp.Compare(y.at.To, x.at.To))
	})
	var out []byte
	from := 0
	for _, e := range edits {
		if e.at.From < from {
			continue
		}
		out = append(append(out, data[from:e.at.From]...), e.with...)
		from = e.at.To
	}
	return append(out, data[from:]...)
}
