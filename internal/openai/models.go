package openai

import "time"

// ModelList is the answer to GET /v1/models.
type ModelList struct {
	Object string      `json:"object"`
	Data   []ModelCard `json:"data"`
	// What follows is of Anthropic's list, see ForAnthropic: whether there is another page, and the
	// ids at the ends of this one.
	HasMore *bool  `json:"has_more,omitempty"`
	FirstID string `json:"first_id,omitempty"`
	LastID  string `json:"last_id,omitempty"`
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
	// What follows is of Anthropic's card, see ForAnthropic. CreatedAt is Created by RFC 3339.
	Type        string `json:"type,omitempty"`
	DisplayName string `json:"display_name,omitempty"`
	CreatedAt   string `json:"created_at,omitempty"`
}

// ForAnthropic returns the list with what clients of Anthropic's API expect besides. It has all
// models on one page.
func (l ModelList) ForAnthropic() ModelList {
	l.HasMore = new(bool)
	cards := make([]ModelCard, len(l.Data))
	for i, card := range l.Data {
		cards[i] = card.ForAnthropic()
	}
	if l.Data = cards; len(cards) > 0 {
		l.FirstID, l.LastID = cards[0].ID, cards[len(cards)-1].ID
	}
	return l
}

// ForAnthropic returns the card with what clients of Anthropic's API expect besides.
func (c ModelCard) ForAnthropic() ModelCard {
	c.Type, c.DisplayName, c.CreatedAt = "model", c.ID, time.Unix(c.Created, 0).UTC().Format(time.RFC3339)
	return c
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
