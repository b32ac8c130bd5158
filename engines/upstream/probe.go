package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/sluice-gateway/sluice/engines"
)

// maxProbeBytes bounds what is read of the answer to a probe.
const maxProbeBytes = 64 << 10

var errNoProbe = errors.New("it has no list of models, and answers 404 at /health, /info and /: name the path of its health check in health.path")

// askWithoutList finds out whether a server without a list of models is alive. It returns a list of
// the model that the server tells of in another way. nil means that this could not be found out.
func (q question) askWithoutList(ctx context.Context) (*modelList, error) {
	list := modelList{absent: true}
	if q.healthPath == "" {
		var err error
		if list.closeDelimited, err = q.probeUsual(ctx); err != nil {
			return nil, err
		}
	}
	if !q.discover {
		return &list, nil
	}
	model, err := q.fetchInfo(ctx)
	if err != nil && !isNotFound(err) {
		return nil, nil // It is alive, and may tell the next time.
	}
	if model != "" {
		told := newModelList([]string{model})
		list.names, list.listed, list.refused = told.names, told.listed, told.refused
	}
	return &list, nil
}

// probeUsual asks the first path that the server has of those by which a server without a list of
// models is known to be alive.
func (q question) probeUsual(ctx context.Context) (closeDelimited bool, err error) {
	for _, path := range []string{"/health", "/info", "/"} {
		if closeDelimited, err = q.probe(ctx, path); !isNotFound(err) {
			return closeDelimited, err
		}
	}
	return false, errNoProbe
}

// probe reports an error if the server does not answer a GET for the path with a status from 200 to
// 399.
func (q question) probe(ctx context.Context, path string) (closeDelimited bool, err error) {
	resp, err := q.get(ctx, path, "its "+path)
	if isRedirect(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxProbeBytes))
	return engines.IsCloseDelimited(resp), withoutURL(err)
}

// fetchInfo returns the name of the model that the server tells of at /info, as
// text-embeddings-inference does; "" if there is none.
func (q question) fetchInfo(ctx context.Context) (string, error) {
	resp, err := q.get(ctx, "/info", "its /info")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var info struct {
		ServedModelName string `json:"served_model_name"` // since 1.9
		ModelID         string `json:"model_id"`
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBytes))
	if err != nil {
		return "", withoutURL(err)
	}
	if json.Unmarshal(body, &info) != nil {
		return "", nil // It is of something else.
	}
	return cmp.Or(info.ServedModelName, info.ModelID), nil
}
