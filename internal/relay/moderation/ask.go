package moderation

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/leaves"
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
	if t.hash != nil {
		t.hash.Write(b)
	}
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

// askHooks asks hooks about the texts that have grown enough, and about all that have grown and are
// at their end. It ends the choices that a hook blocks.
func (f *Filter) askHooks(ctx context.Context, atEnd func(*text) bool) {
	if len(f.set.hooks) == 0 {
		return
	}
	var questions []*pendingQuestion
	for _, t := range f.texts {
		if t.level > 0 || len(f.ended) > 0 && f.HasEnded(t.choice) {
			continue
		}
		whole := t.path.Class == leaves.Complete
		if whole && f.wasJudged(t) {
			continue
		}
		final := whole || atEnd(t)
		for i, h := range f.set.hooks {
			if fresh := t.total - t.asked[i]; fresh >= int64(h.Every) || final && fresh > 0 {
				questions = append(questions, &pendingQuestion{hook: h, text: t, q: question{f.Model, t.questionText(i, h), max(t.choice, 0), final}})
				t.asked[i] = t.total
			}
		}
	}
	askAll(ctx, questions)
	f.applyAnswers(questions)
}

// applyAnswers ends the choices that hooks have blocked.
func (f *Filter) applyAnswers(questions []*pendingQuestion) {
	for _, d := range questions {
		if d.err != nil && f.err == nil {
			f.err = d.err
		}
	}
	for _, d := range questions {
		if d.blocked {
			f.endChoice(d.text.choice, d.hook.rule, f.hookCut(d.text))
		}
	}
}

// hookCut is the cut of a text that a hook has blocked: before the first event of its choice that
// was not sent.
func (f *Filter) hookCut(t *text) cut {
	c := cut{event: f.event, path: t.path}
	for _, u := range f.texts {
		if u.choice == t.choice && u.isHolding() {
			c.event = min(c.event, u.growths[0].event)
		}
	}
	return c
}

// wasJudged reports whether the hooks have judged the same text before. The last events of a
// response repeat what the events before have said.
func (f *Filter) wasJudged(t *text) bool {
	if t.total == 0 || t.asked[0] == t.total {
		return true
	}
	sum := maphash.Bytes(f.set.seed, t.recent)
	if _, ok := f.judged[sum]; ok {
		return true
	}
	for _, u := range f.texts {
		if u.hash != nil && u.total == t.total && u.hash.Sum64() == sum && !slices.ContainsFunc(u.asked, func(n int64) bool { return n < u.total }) {
			return true
		}
	}
	if f.judged == nil {
		f.judged = map[uint64]struct{}{}
	}
	if len(f.judged) < maxJudged {
		f.judged[sum] = struct{}{}
	}
	return false
}

// maxJudged bounds Filter.judged.
const maxJudged = 1024

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
