package telemetry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

func TestR3_ReadingOfAResponse(t *testing.T) {
	t.Parallel()
	first, last := time.UnixMicro(1700000000000001), time.UnixMicro(1700000000900001)
	for text, want := range map[string]*request.Reading{
		"3 500 1700000000000001 1700000000900001 1 stop 345:1,40:1": {Tokens: 3, Bytes: 500, First: first, Last: last, Ended: true, Finish: "stop",
			Gaps: map[int]int64{345: 1, 40: 1}},
		"1 50 1700000000000001 1700000000900001 0 - ": {Tokens: 1, Bytes: 50, First: first, Last: last},
		"0 70 0 0 0 length ":                          {Bytes: 70, Finish: "length"},
		"1 50 1700000000000001 1700000000900001 0 - x:1,5:y,-1:2,7,9:0,8:2": {Tokens: 1, Bytes: 50, First: first, Last: last,
			Gaps: map[int]int64{8: 2}},
		"":              nil,
		"1 2 3":         nil,
		"1 -2 3 4 0 - ": nil,
		"a b c d e f g": nil,
	} {
		m := map[string]*structpb.Struct{headers.MetadataStream: {Fields: map[string]*structpb.Value{headers.MetadataRead: structpb.NewStringValue(text)}}}
		if diff := cmp.Diff(want, reading(marshal(t, m[headers.MetadataStream]))); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", text, diff)
		}
	}
	if reading(nil) != nil {
		t.Error("a reading without metadata")
	}
}
