// Package usage is the ledger: it counts requests and tokens by tenant, key, model and hour.
// Package internal/gateway uses it: it adds what each request has used, and asks what was used in a
// period for package internal/admin.
//
// # Where counts are kept
//
// A process adds to rows in memory (table.go). A row is one subject in one hour. The process writes
// the rows that have changed to its own journal in the state directory (journal.go), within
// groupInterval. A line of the journal has the whole row, not a difference. So the last line of a
// row counts, and a line that is read twice changes nothing. A journal belongs to one writer. A
// process continues a journal that no live process has locked, and otherwise begins a new one. So
// two processes of a restart for an upgrade write beside each other, and an answer adds up the
// journals of all writers.
//
// # Several gateways
//
// Gateways that share Redis publish their changed rows there twice a second (share.go, redis.go,
// publish.lua). An answer adds the rows that the writers of other folders have published.
//
// # What is lost
//
// A kill of the process loses what was counted less than groupInterval before, and the entries of
// Envoy's access log that were on their way to the process. A crash of the machine loses what was
// written in the last syncInterval.
//
// # Bounds
//
// Hours become days after Keep.HourlyDays, and days are dropped after Keep.DailyDays. A process
// does so in its own journal and in those of processes that have ended. An hour has at most
// maxSubjects subjects; the requests of further keys count under the key Other, but for those of
// keys with budgets. While the clock of the machine is in doubt (clock.go), nothing is dropped.
// A jump of that clock counts for new requests and for budgets once it has lasted (steady.go).
package usage
