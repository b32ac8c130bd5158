package history

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2030, 5, 4, 12, 0, 0, 0, time.UTC)

// values returns values of which all are n, with tenths in the rate.
func values(n float64) Values {
	var v Values
	for i := range v {
		v[i] = n
	}
	v[RequestsPerSecond] = n / 10
	return v
}

// sampleOf returns a sample in which a model has the values of n and the total those of 2n.
func sampleOf(model string, n float64) Sample {
	return Sample{Total: values(2 * n), Models: map[string]Values{model: values(n)}}
}

// open returns a store with what its directory has at a time.
func open(t *testing.T, dir string, at time.Time, maxBytes int64) (s *Store, damaged []string) {
	t.Helper()
	s = New(Config{Dir: dir, MaxBytes: maxBytes, OnDamage: func(files []string) { damaged = append(damaged, files...) },
		OnError: func(err error) { t.Error(err) }})
	s.load(at)
	return s, damaged
}

// fill adds n samples from a time on. The value is the number of the sample, from 1.
func fill(t *testing.T, s *Store, model string, from time.Time, n int) {
	t.Helper()
	for i := range n {
		if err := s.Add(from.Add(time.Duration(i)*Step), sampleOf(model, float64(i+1))); err != nil {
			t.Fatal(err)
		}
	}
}

// queued returns the values of Queued as text.
func queued(s *Store, model string, from time.Time, n int) string {
	return line(s.Find(Query{Model: model, From: from, To: from.Add(time.Duration(n) * Step), Step: Step}).Values[Queued])
}

func line(values []Number) string {
	var b []byte
	for _, v := range values {
		b = append(v.AppendTo(b), ' ')
	}
	return strings.TrimSpace(string(b))
}

func TestB8_ValuesAreExactEnough(t *testing.T) {
	for n := range 2049 {
		if got := encode(float64(n)).value(); got != float64(n) {
			t.Errorf("%d became %v", n, got)
		}
	}
	for v := 1e-4; v < 1e13; v *= 1.37 {
		if got := encode(v).value(); math.Abs(got/v-1) > 0.0005 {
			t.Errorf("%v became %v", v, got)
		}
	}
	for v, want := range map[float64]string{0.1: "0.1", -1: "0", 123.44: "123.4", 80 << 30: "85899345920", math.NaN(): "null", 1e300: "35150012350464", 1e-30: "0"} {
		if got := string(Number(encode(v).value()).AppendTo(nil)); got != want {
			t.Errorf("%v is written as %s, want %s", v, got, want)
		}
	}
}

func TestB8_SamplesOutliveTheProcess(t *testing.T) {
	dir, from := t.TempDir(), noon.Add(-30*time.Second)
	before, _ := open(t, dir, from, 0)
	fill(t, before, "chat", from, 6) // nobody closes it: the process was killed
	last := filepath.Join(dir, fileName("models", momentOf(noon).hour()))
	f, err := os.OpenFile(last, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.Write(append([]byte{200, 1, 0, 0}, make([]byte, 300)...)) // a record that was being written
	f.Close()

	s, damaged := open(t, dir, noon.Add(time.Minute), 0)
	if len(damaged) > 0 {
		t.Errorf("damaged: %v", damaged)
	}
	fill(t, s, "chat", noon.Add(50*time.Second), 2)
	s, _ = open(t, dir, noon.Add(2*time.Minute), 0)
	for model, want := range map[string]string{"chat": "1 2 3 4 5 6 null null 1 2 null", "": "2 4 6 8 10 12 null null 2 4 null"} {
		if got := queued(s, model, from, 11); got != want {
			t.Errorf("model %q: %s, want %s", model, got, want)
		}
	}
	if got := line(s.Find(Query{Model: "chat", From: from, To: from.Add(4 * Step), Step: Step}).Values[RequestsPerSecond]); got != "0.1 0.2 0.3 0.4" {
		t.Errorf("rates: %s", got)
	}
	s.close()
}

func TestB8_ADamagedFileIsRefused(t *testing.T) {
	for _, current := range []bool{true, false} {
		t.Run(fmt.Sprint(current), func(t *testing.T) {
			dir := t.TempDir()
			before, _ := open(t, dir, noon, 0)
			fill(t, before, "chat", noon, 6)
			name := fileName("models", momentOf(noon).hour())
			path := filepath.Join(dir, name)
			data, _ := os.ReadFile(path)
			data[len(data)-12] ^= 1 // in the last record
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			now := noon.Add(2 * time.Minute)
			if !current {
				now = noon.Add(time.Hour)
			}
			s, damaged := open(t, dir, now, 0)
			if diff := cmp.Diff([]string{name}, damaged); diff != "" {
				t.Errorf("damaged files (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(path + damagedSuffix); err != nil {
				t.Error(err)
			}
			fill(t, s, "chat", now, 2)
			s, damaged = open(t, dir, now.Add(time.Minute), 0)
			if len(damaged) > 0 {
				t.Errorf("damaged after a sample: %v", damaged)
			}
			if got := queued(s, "chat", now, 2); got != "1 2" {
				t.Errorf("new samples: %s", got)
			}
			if got := queued(s, "", noon, 6); got != "2 4 6 8 10 12" {
				t.Errorf("total: %s", got)
			}
			s.load(now.Add(48 * time.Hour))
			if _, err := os.Stat(path + damagedSuffix); err == nil {
				t.Error("the damaged file is kept for ever")
			}
		})
	}
}

func TestB8_HistoryIsBounded(t *testing.T) {
	dir, models := t.TempDir(), map[string]Values{}
	const maxBytes = 300_000
	s, _ := open(t, dir, noon, maxBytes)
	for hour := range 30 {
		for i := range slotsPerHour {
			for m := range 3 {
				models[fmt.Sprint("m", m)] = values(float64(i + m))
			}
			if err := s.Add(noon.Add(time.Duration(hour)*time.Hour+time.Duration(i)*Step), Sample{Total: values(float64(i)), Models: models}); err != nil {
				t.Fatal(err)
			}
		}
	}
	end := noon.Add(30 * time.Hour)
	var onDisk int64
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		if info, err := f.Info(); err == nil && strings.HasPrefix(f.Name(), "models") {
			onDisk += info.Size()
		}
	}
	if onDisk > maxBytes*6/5 || bytesOf(&s.models) > maxBytes {
		t.Errorf("models have %d bytes in files and %d in memory, want about %d", onDisk, bytesOf(&s.models), maxBytes)
	}
	if n := len(s.total.hours); n != kept {
		t.Errorf("%d hours of the total are kept, want %d", n, kept)
	}
	s, _ = open(t, dir, end, maxBytes)
	if got := queued(s, "", end.Add(-24*time.Hour), 3); got != "0 1 2" {
		t.Errorf("total of 24 hours ago: %s", got)
	}
	if got := queued(s, "m1", end.Add(-2*time.Hour), 3); got != "1 2 3" {
		t.Errorf("model of two hours ago: %s", got)
	}
}

func bytesOf(a *archive) (all int64) {
	for _, h := range a.hours {
		all += h.bytes
	}
	return all
}

func TestB8_UnchangedValuesTakeNoRoom(t *testing.T) {
	s, _ := open(t, t.TempDir(), noon, 0)
	idle := map[string]Values{}
	for m := range 1000 {
		idle[fmt.Sprint("m", m)] = values(0)
	}
	for i := range slotsPerHour {
		if err := s.Add(noon.Add(time.Duration(i)*Step), Sample{Models: idle}); err != nil {
			t.Fatal(err)
		}
	}
	if got := bytesOf(&s.total) + bytesOf(&s.models); got > 30_000 {
		t.Errorf("an hour of 1,000 idle models takes %d bytes", got)
	}
	if got := queued(s, "m7", noon.Add(58*time.Minute), 2); got != "0 0" {
		t.Errorf("values: %s", got)
	}
}

func TestB8_AModelThatIsGone(t *testing.T) {
	s, _ := open(t, t.TempDir(), noon, 0)
	fill(t, s, "old", noon, 2)
	fill(t, s, "new", noon.Add(2*Step), 2)
	if got := queued(s, "old", noon, 4); got != "1 2 null null" {
		t.Errorf("old: %s", got)
	}
	if got := queued(s, "new", noon, 4); got != "null null 1 2" {
		t.Errorf("new: %s", got)
	}
}

func TestB8_AStepOfSeveralSamples(t *testing.T) {
	s, _ := open(t, t.TempDir(), noon, 0)
	fill(t, s, "chat", noon.Add(Step), 5) // the first sample is missing
	a := s.Find(Query{Model: "chat", From: noon.Add(5 * time.Second), To: noon.Add(90 * time.Second), Step: 3 * Step})
	if !a.From.Equal(noon) {
		t.Errorf("from %s", a.From)
	}
	if got := line(a.Values[Queued]); got != "1.5 4 null" {
		t.Errorf("means: %s", got)
	}
	if got := line(a.Values[TTFTp95]); got != "2 5 null" {
		t.Errorf("peaks: %s", got)
	}
}

func TestB8_AnOldSampleIsIgnored(t *testing.T) {
	s, _ := open(t, t.TempDir(), noon, 0)
	fill(t, s, "chat", noon, 2)
	fill(t, s, "chat", noon.Add(-2*time.Hour), 2) // the clock was put back
	fill(t, s, "chat", noon, 3)
	if got := queued(s, "chat", noon, 3); got != "1 2 3" {
		t.Errorf("values: %s", got)
	}
}

// A clock that is wrong for a moment costs no samples. Samples go on where a clock was ahead for
// long, also in the files.
func TestB8_AClockThatWasWrong(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, noon, 0)
	fill(t, s, "chat", noon, 3)
	year := 365 * 24 * time.Hour
	for _, wrong := range []time.Duration{year, -year} {
		fill(t, s, "chat", noon.Add(wrong), 2)
		if got := queued(s, "chat", noon, 3); got != "1 2 3" {
			t.Errorf("after two samples of a wrong clock: %s", got)
		}
	}
	later := noon.Add(10 * time.Minute)
	fill(t, s, "chat", later, trusted+2)
	if got := queued(s, "chat", later.Add((trusted-1)*Step), 3); got != "30 31 32" {
		t.Errorf("when the clock is right again: %s", got)
	}
	s, _ = open(t, dir, later, 0)
	if got := queued(s, "chat", noon, 3) + ", " + queued(s, "chat", later.Add((trusted-1)*Step), 3); got != "1 2 3, 30 31 32" {
		t.Errorf("in the files: %s", got)
	}
}

// A clock is set back by less than two hours, as where the machine's own clock had the local time.
// That costs the samples of five minutes too, and no earlier ones of the same hour.
func TestB8_AClockThatIsSetBack(t *testing.T) {
	for _, ahead := range []time.Duration{10 * time.Minute, 40 * time.Minute, time.Hour, 110 * time.Minute} {
		dir := t.TempDir()
		s, _ := open(t, dir, noon, 0)
		fill(t, s, "chat", noon, 3)
		fill(t, s, "chat", noon.Add(time.Minute+ahead), 4)
		later := noon.Add(2 * time.Minute)
		fill(t, s, "chat", later, trusted+2)
		for _, when := range []string{"in memory", "in the files"} {
			got := queued(s, "chat", noon, 4) + ", " + queued(s, "chat", later.Add((trusted-1)*Step), 3)
			if got != "1 2 3 null, 30 31 32" {
				t.Errorf("%v, %s: %s", ahead, when, got)
			}
			s, _ = open(t, dir, later.Add((trusted+2)*Step), 0)
		}
	}
}

// A start with a wrong clock, such as one before the machine has asked for the time, costs no
// samples either. Those that follow the right clock join the ones of before.
func TestB8_AStartWithAWrongClock(t *testing.T) {
	for _, wrong := range []time.Duration{-26 * time.Hour, -time.Hour, 26 * time.Hour, 365 * 24 * time.Hour} {
		dir := t.TempDir()
		s, _ := open(t, dir, noon, 0)
		fill(t, s, "chat", noon.Add(-time.Hour), 3)
		fill(t, s, "chat", noon, 3)
		s, _ = open(t, dir, noon.Add(wrong), 0)
		fill(t, s, "chat", noon.Add(wrong), 2)
		later := noon.Add(time.Minute)
		fill(t, s, "chat", later, trusted+2)
		for _, when := range []string{"in memory", "in the files"} {
			got := queued(s, "chat", noon.Add(-time.Hour), 3) + ", " + queued(s, "chat", noon, 3) + ", " + queued(s, "chat", later.Add((trusted-1)*Step), 3)
			if got != "1 2 3, 1 2 3, 30 31 32" {
				t.Errorf("%v, %s: %s", wrong, when, got)
			}
			s, _ = open(t, dir, later, 0)
		}
	}
}

func TestB8_AFileThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no directory can be made there
		t.Fatal(err)
	}
	s := New(Config{Dir: dir})
	for i := range 2 {
		if err := s.Add(noon.Add(time.Duration(i)*Step), sampleOf("chat", float64(i+1))); err == nil {
			t.Error("no error")
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	fill(t, s, "chat", noon.Add(2*Step), 1) // the store makes the directory itself
	again, _ := open(t, dir, noon.Add(time.Minute), 0)
	if got := queued(again, "chat", noon, 3); got != "1 2 1" {
		t.Errorf("values after the directory could be made: %s", got)
	}
}
