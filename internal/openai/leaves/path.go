package leaves

// Path is a place in the objects that one Reader reads.
type Path struct {
	// ID tells the paths of a Reader apart. It counts from 0.
	ID    int
	Class Class
	// IsName says that the leaves are names of members, not values.
	IsName bool

	name string
	// container says that objects and lists stand here. A string at the same place has another
	// path, because what is known of the name may hold for one of the two only.
	container bool
	known     bool // the name is one of the API's
	isNew     bool
	collapse  bool // the elements are one place, also those with an index
	role      role
	rules     rules
	rank      uint8 // the position in a stream of a choice's texts
	index     int   // of an element; member: it is none
	seen      uint32
	twin      *Path // the member of the same name with the other container

	children []*Path
	// last is the index of the child that was found last. Engines write members in the same order
	// in every event, so the next one is mostly the child behind it.
	last    int
	nameTag *Path // stands for the names of members that are not known
}

// Path.index of a path that is no element.
const (
	member = -2
	root   = -3
)

// role is what the reader itself needs a member for.
type role uint8

const (
	roleNone    role = iota
	roleChoices      // the list of choices
	roleIndex        // the index of an element
	roleFinish       // finish_reason
	roleBody         // what a choice says
	roleSpare        // repeats a text
	roleType         // says that the object is an event of that type
	roleStatus       // the status of a response
	roleDetails      // the incomplete_details of a response
	roleOutput       // the output of a response
	roleUsage
)

// isContainer reports whether a value that starts with this byte is an object or a list.
func isContainer(kind byte) bool { return kind == '{' || kind == '[' }

// child returns the path of a member. nil: there are too many.
func (r *Reader) child(p *Path, name []byte, kind byte) *Path {
	container := isContainer(kind)
	n := len(p.children)
	for i := range n {
		at := p.last + 1 + i
		if at >= n {
			at -= n
		}
		if c := p.children[at]; c.container == container && c.name == string(name) {
			p.last = at
			return c
		}
	}
	c := r.newPath(p)
	if c == nil {
		return nil
	}
	for _, twin := range p.children[:n] {
		if twin.name == string(name) && twin.index == member {
			c.twin, twin.twin = twin, c
		}
	}
	c.name, c.index, c.container, c.isNew = string(name), member, container, true
	p.describe(c)
	return c
}

// elementPath returns the path of the elements with this index, or without one if it is negative.
func (r *Reader) elementPath(p *Path, index int, kind byte) *Path {
	container := isContainer(kind)
	for _, c := range p.children {
		if c.index == index && c.container == container {
			return c
		}
	}
	c := r.newPath(p)
	if c == nil {
		return nil
	}
	c.index, c.container, c.known = index, container, true
	c.Class, c.rules, c.rank, c.collapse = p.Class, p.rules, p.rank, p.collapse
	if p.role == roleChoices {
		c.rules = rulesChoice
	}
	return c
}

// typedChild returns the root of the events of this name.
func (r *Reader) typedChild(key, typ []byte) *Path {
	n := len(r.typedRoots)
	for i := range n {
		at := r.lastTyped + i
		if at >= n {
			at -= n
		}
		if c := r.typedRoots[at]; c.name == string(key) {
			r.lastTyped = at
			return c
		}
	}
	if r.paths >= MaxPaths {
		return nil
	}
	c := &Path{ID: r.paths, name: string(key), index: member, known: true}
	r.paths++
	c.describeEvent(typ)
	r.typedRoots, r.lastTyped = append(r.typedRoots, c), n
	return c
}

// nameOf returns the path of a name that is not known.
func (r *Reader) nameOf(c *Path) *Path {
	if c.nameTag == nil {
		class := Complete
		if c.Class == Tokens {
			class = Tokens
		}
		c.nameTag = &Path{ID: r.paths, Class: class, rank: c.rank, IsName: true}
		r.paths++
	}
	return c.nameTag
}

// newPath returns a new child of p. nil: there are too many paths.
func (r *Reader) newPath(p *Path) *Path {
	if r.paths >= MaxPaths {
		return nil
	}
	c := &Path{ID: r.paths, Class: p.Class, rules: p.rules, rank: p.rank, collapse: p.collapse}
	r.paths++
	p.children = append(p.children, c)
	p.last = len(p.children) - 1
	return c
}
