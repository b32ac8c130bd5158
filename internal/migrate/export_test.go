package migrate

// SplitWords is splitWords, for tests.
var SplitWords = splitWords
