package usage

import (
	"context"
	_ "embed" // for the script
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// keyPrefix begins every key in Redis. The braces keep all keys at one node of a cluster.
const keyPrefix = "{sluice:usage}:"

// The kinds of hashes with rows: those of hours, and those of the days that they make.
const (
	kindHours = "hours"
	kindDays  = "days"
)

// sumField is the field of a hash with the number of requests of all its rows.
const sumField = "#"

var (
	//go:embed publish.lua
	publishLua    string
	publishScript = redis.NewScript(publishLua)
	// timeScript returns the time in milliseconds of the node with the key. The clocks of the nodes
	// of a cluster may differ, and TIME alone may ask any of them.
	timeScript = redis.NewScript("local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)")
)

// remote is the state in Redis that gateways share.
type remote struct {
	client redis.UniversalClient
	// name is that of this host.
	name string
}

// change is what changes in one hash: fields and their values, in turn.
type change struct {
	kind, period string
	// expires is when the hash is dropped, in seconds since 1970.
	expires int64
	fields  []any
}

// state says how much of a writer's usage is in Redis.
type state string

const (
	// whole: everything was published at the time of the record.
	whole state = "whole"
	// partial: rows of before are still to be published.
	partial state = "partial"
	// closed: everything was published, and the process has ended.
	closed state = "closed"
)

// record is what Redis has of a writer.
type record struct {
	// mark changes with each publication of rows.
	mark string
	// at is when the writer was last heard of, by Redis' clock.
	at    time.Time
	state state
	// name is that of the gateway's host.
	name string
}

// parseRecord reads a record as the script writes it.
func parseRecord(text string) (r record, ok bool) {
	parts := strings.SplitN(text, " ", 4)
	if len(parts) < 4 {
		return r, false
	}
	ms, err := strconv.ParseInt(parts[1], 10, 64)
	return record{mark: parts[0], at: time.UnixMilli(ms), state: state(parts[2]), name: parts[3]}, err == nil
}

// publication is what one call of the script writes.
type publication struct {
	writer string
	// last is the mark of the writer's publication before, and now is the writer's record from this
	// one on. Redis sets the time of the record, and the name is that of the remote.
	last string
	now  record
	// expires is when the lists of writers are dropped.
	expires time.Time
	changes []change
}

// publish writes changes of a writer. known says that Redis has had the mark last.
func (r *remote) publish(ctx context.Context, p publication) (known bool, err error) {
	args := []any{keyPrefix, p.writer, p.last, p.now.mark, string(p.now.state), r.name, p.expires.Unix()}
	for _, c := range p.changes {
		args = append(args, c.kind, c.period, c.expires, len(c.fields)/2)
		args = append(args, c.fields...)
	}
	return publishScript.Run(ctx, r.client, []string{keyPrefix + "writers"}, args...).Bool()
}

// writers returns the records of all writers, and Redis' time.
func (r *remote) writers(ctx context.Context) (map[string]record, time.Time, error) {
	pipe := r.client.Pipeline()
	all, now := pipe.HGetAll(ctx, keyPrefix+"writers"), timeScript.Eval(ctx, pipe, []string{keyPrefix + "writers"})
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, time.Time{}, err
	}
	records := map[string]record{}
	for writer, text := range all.Val() {
		if found, ok := parseRecord(text); ok {
			records[writer] = found
		}
	}
	ms, err := now.Int64()
	return records, time.UnixMilli(ms), err
}

// listing is what Redis tells of all writers at one moment.
type listing struct {
	writers map[string]record
	// at is the moment by Redis' clock; zero if Redis did not answer.
	at time.Time
	// err is why Redis did not answer.
	err error
}

// list returns what Redis tells of all writers now.
func (r *remote) list(ctx context.Context) (found listing) {
	found.writers, found.at, found.err = r.writers(ctx)
	return found
}

// forget drops the record of a writer. Its rows stay.
func (r *remote) forget(ctx context.Context, writer string) error {
	return r.client.HDel(ctx, keyPrefix+"writers", writer).Err()
}

// sums has the numbers of requests that Redis has of a writer, by day: those of hours and those of
// days. mark is the writer's last one.
type sums struct {
	mark        string
	hours, days map[int64]int64
}

// sums returns what Redis has of a writer in some days.
func (r *remote) sums(ctx context.Context, writer string, days []int64) (sums, error) {
	pipe := r.client.Pipeline()
	all := sums{hours: map[int64]int64{}, days: map[int64]int64{}}
	own := pipe.HGet(ctx, keyPrefix+"writers", writer)
	asked := map[int64][2]*redis.StringCmd{}
	for _, day := range days {
		asked[day] = [2]*redis.StringCmd{pipe.HGet(ctx, hashKey(kindHours, dayName(day), writer), sumField),
			pipe.HGet(ctx, hashKey(kindDays, dayName(day), writer), sumField)}
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return all, err
	}
	was, _ := parseRecord(own.Val())
	all.mark = was.mark
	for day, found := range asked {
		all.hours[day], _ = found[0].Int64() // a hash that is not there has 0
		all.days[day], _ = found[1].Int64()
	}
	return all, nil
}

// readBatch is the number of hashes that are read in one round trip.
const readBatch = 200

// rows yields the rows of all writers but own in some days. It returns how many rows are damaged.
func (r *remote) rows(ctx context.Context, days []int64, own map[string]bool, yield func(rowKey, Counts)) (damaged int, err error) {
	hashes, err := r.hashes(ctx, days, own)
	for len(hashes) > 0 && err == nil {
		n, more := min(len(hashes), readBatch), 0
		more, err = r.readHashes(ctx, hashes[:n], yield)
		hashes, damaged = hashes[n:], damaged+more
	}
	return damaged, err
}

// hash names the rows of a writer in a day.
type hash struct {
	day    int64
	writer string
}

// hashes returns what there is of the days, without the writers own.
func (r *remote) hashes(ctx context.Context, days []int64, own map[string]bool) ([]hash, error) {
	if len(days) == 0 {
		return nil, nil
	}
	pipe := r.client.Pipeline()
	lists := make([]*redis.StringSliceCmd, len(days))
	for i, day := range days {
		lists[i] = pipe.SMembers(ctx, keyPrefix+"by:"+dayName(day))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	var all []hash
	for i, list := range lists {
		for _, writer := range list.Val() {
			if !own[writer] {
				all = append(all, hash{days[i], writer})
			}
		}
	}
	return all, nil
}

// readHashes yields the rows of hashes: those of hours, or of the day when the hours have expired.
// It returns how many rows are damaged.
func (r *remote) readHashes(ctx context.Context, hashes []hash, yield func(rowKey, Counts)) (damaged int, err error) {
	pipe := r.client.Pipeline()
	hours, days := make([]*redis.MapStringStringCmd, len(hashes)), make([]*redis.MapStringStringCmd, len(hashes))
	for i, h := range hashes {
		hours[i] = pipe.HGetAll(ctx, hashKey(kindHours, dayName(h.day), h.writer))
		days[i] = pipe.HGetAll(ctx, hashKey(kindDays, dayName(h.day), h.writer))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, err
	}
	for i := range hashes {
		rows := hours[i].Val()
		if len(rows) == 0 {
			rows = days[i].Val()
		}
		for head, counts := range rows {
			if head == sumField {
				continue
			}
			k, c, err := parseRow(head, counts)
			if err != nil {
				damaged++
				continue
			}
			yield(k, c)
		}
	}
	return damaged, nil
}

// addWriters adds the writers that have tallies among those wanted, with an empty mark.
func (r *remote) addWriters(ctx context.Context, wanted []tallyKey, to map[string]string) error {
	pipe := r.client.Pipeline()
	lists := map[string]*redis.StringSliceCmd{}
	for _, k := range wanted {
		if lists[k.period] == nil {
			lists[k.period] = pipe.SMembers(ctx, keyPrefix+"by:"+k.period)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for _, list := range lists {
		for _, writer := range list.Val() {
			if _, there := to[writer]; !there {
				to[writer] = ""
			}
		}
	}
	return nil
}

// spent returns the tallies of writers that Redis has.
func (r *remote) spent(ctx context.Context, wanted []tallyKey, writers []string) (map[string]map[tallyKey]tally, error) {
	if len(writers) == 0 {
		return nil, nil
	}
	fields, names := map[string][]string{}, map[string][]tallyKey{}
	for _, k := range wanted {
		fields[k.period], names[k.period] = append(fields[k.period], k.field()), append(names[k.period], k)
	}
	pipe := r.client.Pipeline()
	asked := map[string]map[string]*redis.SliceCmd{}
	for _, writer := range writers {
		asked[writer] = map[string]*redis.SliceCmd{}
		for period := range fields {
			asked[writer][period] = pipe.HMGet(ctx, hashKey(kindSpent, period, writer), fields[period]...)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	all := map[string]map[tallyKey]tally{}
	for writer, periods := range asked {
		all[writer] = map[tallyKey]tally{}
		for period, found := range periods {
			for i, text := range found.Val() {
				if text != nil {
					all[writer][names[period][i]] = parseTally(text)
				}
			}
		}
	}
	return all, nil
}

// parseRow reads a row from the field and the value that it has in Redis.
func parseRow(head, counts string) (rowKey, Counts, error) {
	var l line
	if err := json.Unmarshal([]byte(head+counts+"]}"), &l); err != nil {
		return rowKey{}, Counts{}, err
	}
	k, c := l.row()
	return k, c, nil
}

func hashKey(kind, period, writer string) string {
	return keyPrefix + kind + ":" + period + ":" + writer
}

// dayName names a day in keys.
func dayName(day int64) string { return period{start: day, day: true}.time().Format(time.DateOnly) }
