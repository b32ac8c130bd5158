package routesync

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// A message is
//
//	message    = version (a byte), sender (text), kind (a byte), rest
//	text       = length, bytes
//	name       = 0 and a new text, or the number of an earlier name of the message from 1
//	waiting    = count, count × (replica (text), tokens)
//	placements = count × placement, to the end of the message
//	placement  = model (name), replica (name), session (8 bytes), owner of the session,
//	             history of the session, bytes of the prompt, d, shared if d > 0, blocks, ends
//	blocks     = count, count × (hash (8 bytes), step)
//
// Numbers are varints of encoding/binary. The rest of kindAll and kindChanged is waiting, that of
// kindPlacements placements, and that of kindLeaving empty. The blocks of a placement begin with
// the first shared blocks of the placement d before it. A step is the distance to the end of the
// block before it.

const (
	// version is the version of the messages. Gateways ignore messages of other versions. It also
	// changes with the hash of package prefix: 1 was XXH64, 2 had four lanes. 3 had no owners.
	version = 4

	// maxMessage bounds a received message, fullMessage is when a sender begins the next one.
	maxMessage  = 1 << 20
	fullMessage = 256 << 10
	// maxPlacements bounds the placements of one message, maxBlocks the blocks of one chain and
	// its ends. Longer chains are not sent.
	maxPlacements = 512
	maxBlocks     = 512
	// maxReplicas bounds the replicas of one gateway with waiting tokens.
	maxReplicas = 1 << 13
	// maxText bounds names in bytes.
	maxText = 1024
)

// The kinds of messages.
const (
	// kindAll has all waiting tokens of the sender, kindChanged those that have changed. 0 means
	// none.
	kindAll     byte = 1
	kindChanged byte = 2
	// kindPlacements has placements.
	kindPlacements byte = 3
	// kindLeaving says that the sender ends.
	kindLeaving byte = 4
)

// message is a decoded message.
type message struct {
	sender string
	kind   byte
	// waiting is for kindAll and kindChanged, placements for kindPlacements.
	waiting    map[string]int64
	placements []dispatch.Placement
}

// appendHead appends the beginning of a message.
func appendHead(b []byte, sender string, kind byte) []byte {
	return append(appendText(append(b, version), sender), kind)
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendWaiting(b []byte, tokens map[string]int64) []byte {
	b = binary.AppendUvarint(b, uint64(len(tokens)))
	for replica, n := range tokens {
		b = binary.AppendUvarint(appendText(b, replica), uint64(max(n, 0)))
	}
	return b
}

type batch struct {
	data  []byte
	count int
	// names numbers the names of the message from 1.
	names map[string]uint64
	// latest has, by the hash of the first block, the latest placement that begins with it.
	latest map[uint64]encoded
}

// encoded is a placement of the message. blocks is a copy of its blocks.
type encoded struct {
	number int
	blocks []prefix.Block
}

// newBatch returns a batch that is empty.
func newBatch(sender string) *batch {
	b := &batch{names: map[string]uint64{}, latest: map[uint64]encoded{}}
	b.reset(sender)
	return b
}

// reset empties the batch. It keeps its memory, so the message before must not be used any more.
func (b *batch) reset(sender string) {
	b.data, b.count = appendHead(b.data[:0], sender, kindPlacements), 0
	clear(b.names)
	clear(b.latest)
}

// full reports whether the message has no room for another placement.
func (b *batch) full() bool { return b.count == maxPlacements || len(b.data) >= fullMessage }

// add adds a placement. It ignores one whose chain or names are too long.
func (b *batch) add(p *dispatch.Placement) {
	blocks := p.Chain.Blocks
	if len(blocks) > maxBlocks || len(p.Chain.Ends) > maxBlocks || len(p.Model) > maxText || len(p.Replica) > maxText {
		return
	}
	b.name(p.Model)
	b.name(p.Replica)
	b.data = binary.LittleEndian.AppendUint64(b.data, p.Session)
	b.data = binary.AppendUvarint(b.data, uint64(p.Owner))
	b.data = binary.AppendUvarint(b.data, uint64(p.History))
	b.data = binary.AppendUvarint(b.data, uint64(p.Chain.Bytes))
	blocks = blocks[b.share(blocks):]
	var last uint32
	if skipped := len(p.Chain.Blocks) - len(blocks); skipped > 0 {
		last = p.Chain.Blocks[skipped-1].End
	}
	b.blocks(blocks, last)
	b.blocks(p.Chain.Ends, 0)
	b.count++
}

func (b *batch) name(text string) {
	if n, ok := b.names[text]; ok {
		b.data = binary.AppendUvarint(b.data, n)
		return
	}
	b.names[text] = uint64(len(b.names) + 1)
	b.data = appendText(append(b.data, 0), text)
}

// share appends which first blocks an earlier placement of the message has, and returns how many.
func (b *batch) share(blocks []prefix.Block) int {
	if len(blocks) == 0 {
		b.data = append(b.data, 0)
		return 0
	}
	first := blocks[0].Hash
	earlier, ok := b.latest[first]
	if !ok {
		b.latest[first] = encoded{b.count, append([]prefix.Block(nil), blocks...)}
		b.data = append(b.data, 0)
		return 0
	}
	n := 0
	for n < min(len(blocks), len(earlier.blocks)) && blocks[n] == earlier.blocks[n] {
		n++
	}
	b.data = binary.AppendUvarint(b.data, uint64(b.count-earlier.number))
	b.data = binary.AppendUvarint(b.data, uint64(n))
	b.latest[first] = encoded{b.count, append(earlier.blocks[:n], blocks[n:]...)}
	return n
}

// blocks appends blocks. last is the end of the block before them.
func (b *batch) blocks(all []prefix.Block, last uint32) {
	b.data = binary.AppendUvarint(b.data, uint64(len(all)))
	for _, one := range all {
		b.data = binary.LittleEndian.AppendUint64(b.data, one.Hash)
		b.data = binary.AppendUvarint(b.data, step(last, one.End))
		last = one.End
	}
}

// unit is what the ends of most blocks are multiples of.
const unit = 64

// step returns the distance between two ends as a small number. Its last bit says that the distance
// is not a multiple of unit.
func step(from, to uint32) uint64 {
	d, odd := int64(to)-int64(from), uint64(1)
	if d%unit == 0 {
		d, odd = d/unit, 0
	}
	return (uint64(d<<1)^uint64(d>>63))<<1 | odd // the sign is the bit before, as in varints
}

// follow returns the end that is a step after another.
func follow(from uint32, step uint64) uint32 {
	zigzag := step >> 1
	d := int64(zigzag>>1) ^ -int64(zigzag&1)
	if step&1 == 0 {
		d *= unit
	}
	return uint32(int64(from) + d)
}

var (
	errVersion = errors.New("message of another version")
	errMessage = errors.New("message cannot be read")
)

// decoder decodes messages. It reuses its memory: placements are valid until the next message.
type decoder struct {
	rest   []byte
	failed bool
	names  []string
	blocks []prefix.Block
	// spans say where in blocks the chains of the placements are.
	spans      []span
	placements []dispatch.Placement
}

// span is where the blocks and ends of a chain are: blocks[from:middle] and blocks[middle:to].
type span struct{ from, middle, to int }

// decode decodes a message. The error is errVersion or errMessage.
func (d *decoder) decode(data []byte) (m message, err error) {
	if len(data) == 0 || len(data) > maxMessage {
		return m, errMessage
	}
	if data[0] != version {
		return m, errVersion
	}
	d.rest, d.failed = data[1:], false
	m.sender, m.kind = d.text(), d.byte()
	switch m.kind {
	case kindAll, kindChanged:
		m.waiting = d.waiting()
	case kindPlacements:
		m.placements = d.all()
	case kindLeaving:
	default:
		d.failed = true
	}
	if d.failed || m.sender == "" || len(d.rest) > 0 {
		return message{}, errMessage
	}
	return m, nil
}

func (d *decoder) waiting() map[string]int64 {
	tokens := map[string]int64{}
	for range d.count(maxReplicas, 2) {
		replica := d.text()
		tokens[replica] = int64(min(d.number(), math.MaxInt32))
	}
	return tokens
}

// all decodes placements to the end of the message.
func (d *decoder) all() []dispatch.Placement {
	d.names, d.blocks, d.spans, d.placements = d.names[:0], d.blocks[:0], d.spans[:0], d.placements[:0]
	for len(d.rest) > 0 && !d.failed && len(d.placements) < maxPlacements {
		d.placement()
	}
	if d.failed {
		return nil
	}
	for i, s := range d.spans {
		c := &d.placements[i].Chain
		c.Blocks, c.Ends = d.blocks[s.from:s.middle:s.middle], d.blocks[s.middle:s.to:s.to]
	}
	return d.placements
}

// placement decodes one placement, without its chain, and the chain into blocks.
func (d *decoder) placement() {
	var p dispatch.Placement
	p.Model, p.Replica, p.Session = d.name(), d.name(), d.hash()
	p.Owner = uint32(min(d.number(), math.MaxUint32))
	p.History = uint32(min(d.number(), math.MaxUint32))
	p.Chain.Bytes = int(min(d.number(), math.MaxInt32))
	s := span{from: len(d.blocks)}
	var last uint32
	if distance := d.number(); distance > 0 {
		if distance > uint64(len(d.spans)) {
			d.failed = true
			return
		}
		earlier := d.spans[len(d.spans)-int(distance)]
		shared := d.number()
		if shared > uint64(earlier.middle-earlier.from) {
			d.failed = true
			return
		}
		d.blocks = append(d.blocks, d.blocks[earlier.from:earlier.from+int(shared)]...)
		if shared > 0 {
			last = d.blocks[len(d.blocks)-1].End
		}
	}
	d.chain(last)
	s.middle = len(d.blocks)
	d.chain(0)
	s.to = len(d.blocks)
	d.failed = d.failed || s.middle-s.from > maxBlocks
	d.spans, d.placements = append(d.spans, s), append(d.placements, p)
}

// chain decodes blocks. last is the end of the block before them.
func (d *decoder) chain(last uint32) {
	for range d.count(maxBlocks, 9) {
		hash := d.hash()
		last = follow(last, d.number())
		d.blocks = append(d.blocks, prefix.Block{Hash: hash, End: last})
	}
}

func (d *decoder) name() string {
	n := d.number()
	if n == 0 {
		d.names = append(d.names, d.text())
		return d.names[len(d.names)-1]
	}
	if n > uint64(len(d.names)) {
		d.failed = true
		return ""
	}
	return d.names[n-1]
}

// count decodes how many elements follow, of at least so many bytes.
func (d *decoder) count(most, bytes int) int {
	n := d.number()
	if n > uint64(min(most, len(d.rest)/bytes)) {
		d.failed = true
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.number()
	if n > uint64(min(maxText, len(d.rest))) {
		d.failed = true
		return ""
	}
	return string(d.skip(int(n)))
}

func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.failed, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) hash() uint64 {
	if b := d.skip(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) byte() byte {
	if b := d.skip(1); b != nil {
		return b[0]
	}
	return 0
}

// skip returns the next n bytes; nil: there are not so many.
func (d *decoder) skip(n int) []byte {
	if n > len(d.rest) {
		d.failed, d.rest = true, nil
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}
