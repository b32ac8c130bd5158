package openai

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = flag.Bool("update", false, "write docs/errors.md and docs/bodies.md")

// Every code has one row, every row has a code, and the rows are in the order of their status.
func TestEachCodeIsOneRow(t *testing.T) {
	t.Parallel()
	var inTable []string
	for i, row := range Codes() {
		inTable = append(inTable, string(row.Code))
		if row.Meaning == "" || row.Status < 400 || row.Code.Status() != row.Status || !row.Code.Known() {
			t.Errorf("row %d: %+v, status %d", i, row, row.Code.Status())
		}
		if i > 0 && row.Status < codes[i-1].Status {
			t.Errorf("row %d, %s, has a smaller status than the row before", i, row.Code)
		}
		if http.StatusText(row.Status) == "" && row.Status != 499 { // 499 is nginx's: client closed request
			t.Errorf("%s has status %d, which is not one of HTTP", row.Code, row.Status)
		}
	}
	declared := declaredCodes(t)
	slices.Sort(inTable)
	slices.Sort(declared)
	if diff := cmp.Diff(declared, inTable); diff != "" {
		t.Errorf("codes that are declared (-) and codes of the table (+):\n%s", diff)
	}
	if Code("new").Known() || Code("").Known() {
		t.Error("a code without a row is known")
	}
}

// declaredCodes returns the constants of type Code.
func declaredCodes(t *testing.T) (declared []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, value)
		}
		return true
	})
	return declared
}

// TestDocument holds docs/errors.md to the table.
func TestDocument(t *testing.T) {
	testutil.Golden(t, "../../docs/errors.md", string(document()), *update)
}

// document returns the text of docs/errors.md.
func document() []byte {
	var b bytes.Buffer
	b.WriteString("# Errors\n\n" +
		"The errors that clients meet. This page is generated from `internal/openai/codes.go` by\n" +
		"`go test ./internal/openai -run Document -update`.\n\n" +
		"Every error is `{\"error\":{\"message\",\"type\",\"code\",\"param\"}}`. In a stream that has started it is an\n" +
		"event, with `retryable` and `retry_after_ms` beside those. A retryable error has a `Retry-After` header,\n" +
		"of 1 second if nothing better is known. The header `x-sluice-source` says whether the gateway or the\n" +
		"engine answered. Over gRPC the status follows from the HTTP status, and `llm.v1.Error` holds the rest.\n" +
		"Errors of status 401, 408 and 409, and `insufficient_quota`, have `x-should-retry: false`. Otherwise some clients of OpenAI\n" +
		"and Anthropic would repeat the request by themselves, and generate all of it again or meet the same fault.\n\n" +
		"| status | code | type | retryable | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, row := range Codes() {
		retryable := "no"
		if retryableStatus(row.Status) {
			retryable = "yes"
		}
		fmt.Fprintf(&b, "| %d | `%s` | `%s` | %s | %s |\n", row.Status, row.Code, (&Error{Code: row.Code}).Type(), retryable, row.Meaning)
	}
	return b.Bytes()
}
