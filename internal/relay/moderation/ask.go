package moderation

import (
	"context"
	"sync"
	"unicode/utf8"
)

// maxQuestions bounds the questions of one stream that are asked at the same time.
const maxQuestions = 16

// keepRecent keeps the text that hooks have not been asked about, and the window before it.
func (t *text) keepRecent(hooks []*hook, b []byte) {
	if len(hooks) == 0 {
		return
	}
	from := t.total // the first byte that is still needed
	for i, h := range hooks {
		from = min(from, t.asked[i]-int64(h.window))
	}
	have := t.total - int64(len(t.recent))
	if unused := from - have; unused > 0 && unused >= int64(len(t.recent))/2 { // only if it is half of the bytes, so that the rest is seldom moved
		t.recent = append(t.recent[:0], t.recent[unused:]...)
	}
	t.recent = append(t.recent, b...)
	t.total += int64(len(b))
}

// pendingQuestion is a question to a hook, and then its answer.
type pendingQuestion struct {
	hook    *hook
	text    *text
	q       question
	blocked bool
	err     error
}

// askHooks asks hooks about the texts that have grown enough, at the end about all that have grown.
// The verdict is Block or Pass.
func (f *Filter) askHooks(ctx context.Context, final bool) Verdict {
	if len(f.set.hooks) == 0 {
		return Verdict{}
	}
	var questions []*pendingQuestion
	for _, t := range f.texts {
		for i, h := range f.set.hooks {
			fresh := t.total - t.asked[i]
			if fresh >= int64(h.every) || final && fresh > 0 {
				questions = append(questions, &pendingQuestion{hook: h, text: t, q: question{f.Model, t.questionText(i, h), t.choice, final}})
				t.asked[i] = t.total
			}
		}
	}
	askAll(ctx, questions)
	v := Verdict{}
	for _, d := range questions {
		if d.err != nil && v.Err == nil {
			v.Err = d.err
		}
	}
	for _, d := range questions {
		if d.blocked {
			err := v.Err
			v = f.block(d.hook.rule, d.text)
			v.Err = err
			return v
		}
	}
	return v
}

// questionText returns what a hook is asked about: the new text, and the window before it from its
// first complete rune.
func (t *text) questionText(i int, h *hook) string {
	from := max(t.asked[i]-int64(h.window), t.total-int64(len(t.recent)), 0)
	b := t.recent[int64(len(t.recent))-(t.total-from):]
	for n := 0; from > 0 && n < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); n++ {
		b = b[1:]
	}
	return string(b)
}

// askAll asks all questions, up to maxQuestions at the same time.
func askAll(ctx context.Context, questions []*pendingQuestion) {
	if len(questions) == 1 {
		d := questions[0]
		d.blocked, d.err = d.hook.ask(ctx, d.q)
		return
	}
	var wg sync.WaitGroup
	room := make(chan struct{}, maxQuestions)
	for _, d := range questions {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			d.blocked, d.err = d.hook.ask(ctx, d.q)
		})
	}
	wg.Wait()
}
