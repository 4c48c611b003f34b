package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"keyhole/catalog"
)

// topicSummary is a topic in a list.
type topicSummary struct {
	Name       string `json:"name"`
	ID         string `json:"id"`
	Partitions int32  `json:"partitions"`
}

// topicDescription is a topic with all its properties.
type topicDescription struct {
	topicSummary
	Configs map[string]catalog.ConfigValue `json:"configs"`
}

func summarize(t *catalog.Topic) topicSummary {
	return topicSummary{Name: t.Name(), ID: t.ID(), Partitions: t.NumPartitions()}
}

func describe(t *catalog.Topic) topicDescription {
	return topicDescription{summarize(t), t.Config()}
}

func (a *admin) listTopics(w http.ResponseWriter, _ *http.Request) int {
	list := []topicSummary{} // never null
	for _, t := range a.catalog.Topics() {
		list = append(list, summarize(t))
	}
	return sendJSON(w, http.StatusOK, map[string]any{"topics": list})
}

func (a *admin) createTopic(w http.ResponseWriter, r *http.Request) int {
	var body struct {
		Name       string         `json:"name"`
		Partitions *int32         `json:"partitions"` // absent: 1
		Configs    map[string]any `json:"configs"`
	}
	if err := a.decode(w, r, &body); err != nil {
		return a.fail(w, r, err)
	}
	partitions := int32(1)
	if body.Partitions != nil {
		partitions = *body.Partitions
	}
	configs, _, err := texts(body.Configs) // null: the default, which a new topic has anyway
	if err != nil {
		return a.fail(w, r, err)
	}
	t, err := a.catalog.CreateTopic(r.Context(), body.Name, partitions, configs)
	if err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusCreated, describe(t))
}

func (a *admin) describeTopic(w http.ResponseWriter, r *http.Request) int {
	t, err := a.catalog.Topic(mux.Vars(r)["topic"])
	if err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, describe(t))
}

func (a *admin) deleteTopic(w http.ResponseWriter, r *http.Request) int {
	name := mux.Vars(r)["topic"]
	if err := a.catalog.DeleteTopic(r.Context(), name); err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, map[string]string{"deleted": name})
}

func (a *admin) alterTopic(w http.ResponseWriter, r *http.Request) int {
	var body struct {
		Upsert map[string]any `json:"upsert"`
		Remove []string       `json:"remove"`
	}
	if err := a.decode(w, r, &body); err != nil {
		return a.fail(w, r, err)
	}
	upsert, reset, err := texts(body.Upsert)
	if err != nil {
		return a.fail(w, r, err)
	}
	name := mux.Vars(r)["topic"]
	if err := a.catalog.AlterTopic(r.Context(), name, upsert, append(body.Remove, reset...)); err != nil {
		return a.fail(w, r, err)
	}
	t, err := a.catalog.Topic(name)
	if err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, describe(t))
}

// texts gives property values, which may be JSON strings, numbers or booleans,
// as text; null gives a property back its default.
func texts(values map[string]any) (set map[string]string, reset []string, err error) {
	set = make(map[string]string, len(values))
	for name, value := range values {
		switch v := value.(type) {
		case nil:
			reset = append(reset, name)
		case string:
			set[name] = v
		case json.Number:
			set[name] = v.String()
		case bool:
			set[name] = strconv.FormatBool(v)
		default:
			return nil, nil, badRequest(fmt.Sprintf("value of %q is neither a string, a number nor a boolean", name))
		}
	}
	return set, reset, nil
}
