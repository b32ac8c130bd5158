package upstream

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// Discovered is a server whose own models are to be served.
type Discovered struct {
	URL string
	// Join makes the server a replica of each joinable model of the configuration that it lists.
	Join bool
	// Models are patterns of the models that are served, in which * stands for any characters. With
	// none, all are served.
	Models []string
}

func (d *Discovered) serves(model string) bool {
	return len(d.Models) == 0 || slices.ContainsFunc(d.Models, func(pattern string) bool { return matches(pattern, model) })
}

// matches reports whether a name matches a pattern, in which * stands for any characters.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	name, ok := strings.CutPrefix(name, parts[0])
	if !ok || last == 0 {
		return ok && name == ""
	}
	for _, part := range parts[1:last] {
		_, rest, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = rest
	}
	return strings.HasSuffix(name, parts[last])
}

// Reserved says what a name of the configuration belongs to. A server cannot take such a name by
// listing a model under it.
type Reserved struct {
	// Owner says what has the name, for messages: "a model of the configuration".
	Owner string
	// Joinable says that the name is that of a model which servers with Join are replicas of.
	Joinable bool
}

// Clash is a name of the configuration that servers list although it is not theirs. The servers get
// no requests for it.
type Clash struct {
	Name string
	Reserved
	// Servers are the ids of the servers, sorted.
	Servers []string
}

// Message says what clashes.
func (c Clash) Message() string {
	list, get := "The server "+c.Servers[0]+" lists", "It gets"
	if len(c.Servers) > 1 {
		list, get = "The servers "+strings.Join(c.Servers, ", ")+" list", "They get"
	}
	return fmt.Sprintf("%s %s, which is %s. %s no requests for it.", list, c.Name, c.Owner, get)
}

// RefusedNames are what a server lists and Sluice does not serve: names that no model can have, and
// items without a name.
type RefusedNames struct {
	// Server is the key of the server: its URL, with the address if the URL has several.
	Server string
	// Names holds the first of the names, quoted and shortened. Count counts all of them.
	Names []string
	Count int
	// Beyond counts the models that were not read because the list is too long.
	Beyond int
	// Malformed counts the items of the list that name no model. FirstMalformed is the first of
	// them, quoted and shortened.
	Malformed      int
	FirstMalformed string
}

// any reports whether there is something to tell.
func (r RefusedNames) any() bool { return r.Count > 0 || r.Beyond > 0 || r.Malformed > 0 }

// equal reports whether both say the same of one server.
func (r RefusedNames) equal(o RefusedNames) bool {
	return r.Count == o.Count && r.Beyond == o.Beyond && r.Malformed == o.Malformed && r.FirstMalformed == o.FirstMalformed && slices.Equal(r.Names, o.Names)
}

// Message says which names were refused.
func (r RefusedNames) Message() string {
	var text []string
	if r.Count > 0 {
		names := strings.Join(r.Names, ", ")
		if more := r.Count - len(r.Names); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		text = append(text, fmt.Sprintf("The server %s lists models whose names cannot be used: %s.", r.Server, names),
			"A name is "+engines.NameRule+".")
	}
	if r.Beyond > 0 {
		text = append(text, fmt.Sprintf("The server %s lists more models than the limit of %d. Not served: %d.", r.Server, maxModels, r.Beyond))
	}
	if r.Malformed > 0 {
		items := "an item that names no model and is skipped"
		if r.Malformed > 1 {
			items = fmt.Sprintf("%d items that name no model and are skipped, first of all", r.Malformed)
		}
		text = append(text, fmt.Sprintf("The server %s lists %s: %s.", r.Server, items, r.FirstMalformed))
	}
	return strings.Join(text, " ")
}

// Limits for what messages show of refused names.
const (
	maxShownNames  = 5
	maxShownLength = 60
)

// refuse counts a name that cannot be used.
func (r *RefusedNames) refuse(name string) {
	r.Count++
	if len(r.Names) < maxShownNames {
		r.Names = append(r.Names, strconv.Quote(shortened(name)))
	}
}

// skip counts an item that names no model.
func (r *RefusedNames) skip(item []byte) {
	if r.Malformed++; r.Malformed == 1 {
		r.FirstMalformed = strconv.Quote(shortened(string(item)))
	}
}

// shortened returns the beginning of a text of a server, for messages.
func shortened(text string) string {
	if len(text) > maxShownLength {
		return strings.ToValidUTF8(text[:maxShownLength], "") + "…"
	}
	return text
}

// Clashes returns the names that servers list although the configuration gives them to something
// else, sorted.
func (l *Launcher) Clashes() []Clash {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clashes
}

// RefusedNames returns the refused names of each server that has some, by server.
func (l *Launcher) RefusedNames() []RefusedNames {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []RefusedNames
	for _, key := range slices.Sorted(maps.Keys(l.servers)) {
		if s := l.servers[key]; s.discovered != nil && s.list.refused.any() {
			refused := s.list.refused
			refused.Server = key
			all = append(all, refused)
		}
	}
	return all
}

// Unlisted is a name by which requests ask a server for a model or an adapter of the configuration,
// and that the server does not list.
type Unlisted struct {
	Model, Name, Server string
	// Adapter says that the name is that of an adapter of the model.
	Adapter bool
	// AskedAs is the name by which the server knows the adapter in requests; "" if it is not known.
	AskedAs string
}

// Subject names the condition.
func (u Unlisted) Subject() string {
	if u.Adapter {
		return u.Name + " at " + u.Server
	}
	return u.Model + " at " + u.Server
}

// Message says what the server does not list.
func (u Unlisted) Message() string {
	switch {
	case u.AskedAs != "":
		return fmt.Sprintf("The server %s lists the adapter %s of the model %s, but knows it in requests as %s alone. It answers them with the model.",
			u.Server, strconv.Quote(u.Name), u.Model, strconv.Quote(u.AskedAs))
	case u.Adapter:
		return fmt.Sprintf("The server %s does not list the adapter %s of the model %s.", u.Server, strconv.Quote(u.Name), u.Model)
	}
	return fmt.Sprintf("The server %s does not list %s, which is the name of the model %s there.", u.Server, strconv.Quote(u.Name), u.Model)
}

// Unlisted returns the names of models and adapters that healthy servers do not list, in the order
// of the configuration. A model without a name of its own for a server is looked for only at
// servers that refuse unlisted names. Others, such as llama-server, answer requests for any name.
func (l *Launcher) Unlisted() []Unlisted {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Unlisted
	servers := l.byURLLocked()
	for _, m := range l.desired.Models {
		for _, url := range slices.Sorted(slices.Values(m.URLs)) {
			for _, s := range servers[url] {
				if s.checked && s.fault == "" && !s.list.absent {
					all = append(all, s.unlisted(&m)...)
				}
			}
		}
	}
	return all
}

// unlisted returns what a server does not list of a model of the configuration.
func (s *server) unlisted(m *Model) (all []Unlisted) {
	name := m.Names[s.url]
	if name == "" && s.list.strict {
		name = m.Name
	}
	if name != "" && !s.list.has(name) {
		all = append(all, Unlisted{Model: m.Name, Name: name, Server: s.key})
	}
	for _, adapter := range m.Adapters {
		if askedAs := s.list.askedAs[adapter]; askedAs != "" || !s.list.has(adapter) {
			all = append(all, Unlisted{Model: m.Name, Name: adapter, Server: s.key, Adapter: true, AskedAs: askedAs})
		}
	}
	return all
}

// has reports whether the list has a name, or an adapter of SGLang that requests reach by it.
// SGLang reads what follows the first colon, and obeys no name of a model before it.
func (l *modelList) has(name string) bool {
	_, listed := slices.BinarySearch(l.listed, name)
	_, adapter, _ := strings.Cut(name, ":")
	return listed || l.askedAs[adapter] != ""
}

// nameOn returns the name that the configuration gives a model on a server; "" if it gives none.
func (d Desired) nameOn(model, url string) string {
	for i := range d.Models {
		if d.Models[i].Name == model {
			return d.Models[i].Names[url]
		}
	}
	return ""
}

// Idle returns the keys of the healthy servers that are asked for their models and list none that
// can be served or clashes, sorted. Servers to which the file assigns a model are not among them.
func (l *Launcher) Idle() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(l.servers)) {
		s := l.servers[key]
		if s.discovered == nil || !s.checked || s.fault != "" {
			continue
		}
		if models, clashing := l.servedLocked(s); len(models)+len(clashing) == 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// discovered returns the entry of a server whose own models are to be served; nil for others.
func (d Desired) discovered(url string) *Discovered {
	for i := range d.Discover {
		if d.Discover[i].URL == url {
			return &d.Discover[i]
		}
	}
	return nil
}

// servedLocked returns the models of the server: those that the file assigns to it and, if it is
// listed in Discover, its own. clashing are the names that it lists and that are not its own. l.mu
// must be held.
func (l *Launcher) servedLocked(s *server) (models, clashing []string) {
	for _, m := range l.desired.Models {
		if slices.Contains(m.URLs, s.url) {
			models = append(models, m.Name)
		}
	}
	if s.discovered == nil {
		return models, nil
	}
	assigned := len(models)
	for _, name := range s.list.names {
		reserved, ok := l.desired.Reserved[name]
		switch {
		case slices.Contains(models[:assigned], name) || !s.discovered.serves(name):
		case !ok || s.discovered.Join && reserved.Joinable:
			models = append(models, name)
		default:
			clashing = append(clashing, name)
		}
	}
	return models, clashing
}

// setClashesLocked replaces the clashes by those of servers, the ids of servers by name. It logs
// each clash that is new. l.mu must be held.
func (l *Launcher) setClashesLocked(servers map[string][]string) {
	before := l.clashes
	l.clashes = nil
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		slices.Sort(servers[name])
		c := Clash{Name: name, Reserved: l.desired.Reserved[name], Servers: servers[name]}
		l.clashes = append(l.clashes, c)
		same := func(o Clash) bool {
			return o.Name == name && o.Reserved == c.Reserved && slices.Equal(o.Servers, c.Servers)
		}
		if !slices.ContainsFunc(before, same) {
			l.Log.Warn("model name clash found", zap.String("model", name), zap.String("reason", c.Message()))
		}
	}
}
