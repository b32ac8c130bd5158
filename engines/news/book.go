package news

import (
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/engines"
)

// book is a Known, ready for use. It is immutable.
type book struct {
	// models are the recipes of launched models, by model.
	models map[string]*recipe
	// known are the recipes of all engines that metrics can reveal. paths are those of their
	// metrics, and wanted the names of all their series.
	known  []*recipe
	paths  []string
	wanted map[string]bool
	// signed are the recipes of all engines that have a sign.
	signed []*recipe
}

// recipe is how an engine is asked. It is immutable.
type recipe struct {
	engine, path string
	usualSlots   int
	// figures are in the order of the constants below. An empty one is not told.
	figures [figureCount]engines.Figure
	// wanted are the names of all series of the figures.
	wanted map[string]bool
	// sign has the documents' fields that reveal the engine.
	sign engines.Figure
}

// The figures of a recipe.
const (
	running = iota
	waiting
	kvUsage
	cacheTokens
	cachedTokens
	prefillTokens
	prefillSeconds
	slots
	figureCount
)

// silent reports whether there is nothing to ask for.
func (p *recipe) silent() bool {
	return !slices.ContainsFunc(p.figures[:], func(f engines.Figure) bool { return len(f) > 0 })
}

func newBook(k Known) *book {
	b := &book{models: map[string]*recipe{}, wanted: map[string]bool{}}
	recipes := map[Engine]*recipe{} // models share those of their engines
	of := func(e Engine) *recipe {
		if recipes[e] == nil {
			recipes[e] = newRecipe(e)
		}
		return recipes[e]
	}
	for model, e := range k.Models {
		b.models[model] = of(e)
	}
	for _, e := range k.Engines {
		p := of(e)
		if len(p.sign) > 0 && !slices.Contains(b.signed, p) {
			b.signed = append(b.signed, p)
		}
		if p.path == "" || len(p.wanted) == 0 || slices.Contains(b.known, p) {
			continue
		}
		b.known = append(b.known, p)
		if !slices.Contains(b.paths, p.path) {
			b.paths = append(b.paths, p.path)
		}
		maps.Copy(b.wanted, p.wanted)
	}
	return b
}

// newRecipe parses the figures of an engine. Those that are not valid are left out; the check of
// the catalogue has refused them before.
func newRecipe(e Engine) *recipe {
	m := e.Metrics
	p := &recipe{engine: e.Name, path: m.Path, usualSlots: e.UsualSlots, wanted: map[string]bool{}}
	p.sign, _ = engines.ParseFigure(m.Sign)
	for i, text := range [figureCount]string{running: m.Running, waiting: m.Waiting, kvUsage: m.KVUsage, cacheTokens: m.CacheTokens,
		cachedTokens: m.CachedTokens, prefillTokens: m.PrefillTokens, prefillSeconds: m.PrefillSeconds, slots: m.Slots} {
		if figure, err := engines.ParseFigure(text); err == nil {
			p.figures[i] = figure
		}
		for _, place := range p.figures[i] {
			if place.Series != "" {
				p.wanted[place.Series] = true
			}
		}
	}
	return p
}

// recognise returns the recipe with the most figures on a page of metrics, and of those with
// equally many the last. It returns nil if the page has none.
func (b *book) recognise(path string, page page) *recipe {
	var best *recipe
	most := 1
	for _, p := range b.known {
		if p.path != path {
			continue
		}
		found := 0
		for _, figure := range p.figures {
			if page.has(figure) {
				found++
			}
		}
		if found >= most {
			best, most = p, found
		}
	}
	return best
}
