package moderation

import (
	"context"
	"sync"
	"unicode/utf8"
)

// maxQuestions is how many questions of one stream are asked at the same time.
const maxQuestions = 16

// keepSaid keeps what hooks are to be asked about, and as much before that as they want to see again.
func (t *text) keepSaid(hooks []*hook, b []byte) {
	if len(hooks) == 0 {
		return
	}
	from := t.total // the first byte that is needed
	for i, h := range hooks {
		from = min(from, t.asked[i]-int64(h.window))
	}
	have := t.total - int64(len(t.said))
	if unused := from - have; unused > 0 && unused >= int64(len(t.said))/2 { // half of it, so that it is seldom moved
		t.said = append(t.said[:0], t.said[unused:]...)
	}
	t.said = append(t.said, b...)
	t.total += int64(len(b))
}

// due is a question that is to be asked.
type due struct {
	hook    *hook
	text    *text
	q       question
	blocked bool
	err     error
}

// ask asks hooks about the texts that have grown enough, at the end about all that have grown. It blocks, or passes.
func (f *Filter) ask(ctx context.Context, final bool) Verdict {
	if len(f.set.hooks) == 0 {
		return Verdict{}
	}
	var questions []*due
	for _, t := range f.texts {
		for i, h := range f.set.hooks {
			fresh := t.total - t.asked[i]
			if fresh >= int64(h.every) || final && fresh > 0 {
				questions = append(questions, &due{hook: h, text: t, q: question{f.Model, t.question(i, h), t.choice, final}})
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

// question is what a hook is asked about: what is new, and the window before it from its first whole rune.
func (t *text) question(i int, h *hook) string {
	from := max(t.asked[i]-int64(h.window), t.total-int64(len(t.said)), 0)
	b := t.said[int64(len(t.said))-(t.total-from):]
	for n := 0; from > 0 && n < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); n++ {
		b = b[1:]
	}
	return string(b)
}

func askAll(ctx context.Context, questions []*due) {
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
