package openai

import "time"

// ModelList is the answer to GET /v1/models.
type ModelList struct {
	Object string      `json:"object"`
	Data   []ModelCard `json:"data"`
}

// ModelCard is one model of the list, and the answer to GET /v1/models/{id}.
type ModelCard struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	// Created is in seconds since 1970.
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// NewModelList makes a list; without cards it is an empty one, not null.
func NewModelList(cards ...ModelCard) ModelList {
	if cards == nil {
		cards = []ModelCard{}
	}
	return ModelList{Object: "list", Data: cards}
}

// NewModelCard makes a card.
func NewModelCard(id, ownedBy string, created time.Time) ModelCard {
	return ModelCard{ID: id, Object: "model", Created: created.Unix(), OwnedBy: ownedBy}
}
