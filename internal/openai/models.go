package openai

import "time"

// ModelList is the answer to GET /v1/models.
type ModelList struct {
	Object string      `json:"object"`
	Data   []ModelCard `json:"data"`
}

// ModelCard is one model of a ModelList, and the answer to GET /v1/models/{id}.
type ModelCard struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	// Created is in seconds since 1970.
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Task is the work that the model does; empty: not known.
	Task string `json:"task,omitempty"`
	// ContextLength is how many tokens prompt and answer may have together; 0: not known.
	ContextLength int `json:"context_length,omitempty"`
	// State says whether a request would be served at once; see internal/api. Empty: not known.
	State string `json:"state,omitempty"`
}

// NewModelList returns a list. A list without cards is rendered as an empty list, not as null.
func NewModelList(cards ...ModelCard) ModelList {
	if cards == nil {
		cards = []ModelCard{}
	}
	return ModelList{Object: "list", Data: cards}
}

// NewModelCard returns the card of a model.
func NewModelCard(id, ownedBy string, created time.Time) ModelCard {
	return ModelCard{ID: id, Object: "model", Created: created.Unix(), OwnedBy: ownedBy}
}
