package jsonscan

// Reason says what is wrong with a text.
type Reason uint8

// The reasons. All but TooDeep and NotUTF8 are faults of the grammar.
const (
	NoFault Reason = iota
	UnexpectedEnd
	ExpectedValue
	ExpectedString
	ExpectedColon
	ExpectedCommaOrBrace
	ExpectedCommaOrBracket
	ExpectedDigit
	LeadingZero
	BadEscape
	ControlCharacter
	TrailingData
	TooDeep // nested deeper than MaxDepth
	NotUTF8 // a string is not UTF-8, and RequireUTF8 is set

	stopped // not a fault of the text, see Reader.Stop
)

var reasons = [...]string{
	NoFault:                "no fault",
	UnexpectedEnd:          "unexpected end",
	ExpectedValue:          "expected a value",
	ExpectedString:         "expected a string",
	ExpectedColon:          "expected ':'",
	ExpectedCommaOrBrace:   "expected ',' or '}'",
	ExpectedCommaOrBracket: "expected ',' or ']'",
	ExpectedDigit:          "expected a digit",
	LeadingZero:            "leading zero",
	BadEscape:              "bad escape",
	ControlCharacter:       "control character in a string",
	TrailingData:           "unexpected data after the value",
	TooDeep:                "nested too deep",
	NotUTF8:                "not valid UTF-8",
}

// String returns the reason in words, as in an error message.
func (r Reason) String() string { return reasons[r] }
