package telemetry

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/internal/protofields"
)

// responseFlag is the short form of a flag, and the number of its field in ResponseFlags.
type responseFlag struct {
	short string
	field protowire.Number
}

// responseFlags is the list of Envoy's documentation (%RESPONSE_FLAGS%), without the flags of TCP.
// It is never changed.
var responseFlags = []responseFlag{
	{"UH", 2},
	{"UF", 6},
	{"UO", 8},
	{"NR", 9},
	{"URX", 16},
	{"NC", 25},
	{"DT", 23},
	{"DC", 15},
	{"LH", 1},
	{"UT", 3},
	{"LR", 4},
	{"UR", 5},
	{"UC", 7},
	{"DI", 10},
	{"FI", 11},
	{"RL", 12},
	{"UAEX", 13},
	{"RLSE", 14},
	{"IH", 18},
	{"SI", 17},
	{"DPE", 19},
	{"UPE", 24},
	{"UMSDR", 20},
	{"RFCF", 21},
	{"NFCF", 22},
	{"OM", 26},
	{"DF", 27},
	{"DR", 28},
}

// flags renders the flags that are set in a ResponseFlags. It allocates only when there are two or
// more.
func flags(b []byte) string {
	var set uint64
	_ = protofields.Each(b, func(field protowire.Number, content []byte, n uint64) error { // what comes before a fault counts
		if field < 64 && (n != 0 || content != nil && field == 13) { // unauthorized_details is the only message
			set |= 1 << field
		}
		return nil
	})
	if set == 0 {
		return ""
	}
	all := ""
	for _, f := range responseFlags {
		switch {
		case set&(1<<f.field) == 0:
		case all == "":
			all = f.short
		default:
			all += "," + f.short
		}
	}
	return all
}
