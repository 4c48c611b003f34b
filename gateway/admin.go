package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"keyhole/catalog"
)

// maxAdminBody bounds the JSON body of an admin request.
const maxAdminBody = 1 << 20

// admin answers on the admin listener.
type admin struct {
	*Server
	catalog *catalog.Catalog
	origin  *http.CrossOriginProtection
}

// adminRoutes are the routes of the admin listener.
func (s *Server) adminRoutes() http.Handler {
	a := admin{Server: s, catalog: s.o.Catalog, origin: http.NewCrossOriginProtection()}
	r := mux.NewRouter().SkipClean(true)
	a.handle(r, "/v1/status/ready", methods{http.MethodGet: a.ready})
	a.handle(r, "/v1/status/live", methods{http.MethodGet: a.live})
	a.handle(r, "/v1/topics", methods{http.MethodGet: a.listTopics, http.MethodPost: a.createTopic})
	a.handle(r, "/v1/topics/{topic}", methods{http.MethodGet: a.describeTopic, http.MethodDelete: a.deleteTopic})
	a.handle(r, "/v1/topics/{topic}/config", methods{http.MethodPut: a.alterTopic})
	a.handle(r, "/v1/cluster_config", methods{http.MethodGet: a.clusterConfig, http.MethodPut: a.alterCluster})
	a.handle(r, "/v1/cluster_config/schema", methods{http.MethodGet: a.clusterSchema})
	a.handle(r, "/v1/features", methods{http.MethodGet: a.features})
	a.handle(r, "/v1/features/{feature}", methods{http.MethodPut: a.setFeature})
	a.handle(r, "/v1/cloud_storage/status/{topic}/{partition}", methods{http.MethodGet: a.tierStatus})
	a.handle(r, "/v1/cloud_storage/manifest/{topic}/{partition}", methods{http.MethodGet: a.manifest})
	a.handle(r, "/v1/cloud_storage/evict/{topic}/{partition}", methods{http.MethodPost: a.evict})
	a.handle(r, "/v1/cloud_storage/gc", methods{http.MethodPost: a.collect})
	a.handle(r, "/v1/compact/{topic}/{partition}", methods{http.MethodPost: a.compact})
	a.handle(r, "/v1/cloud_storage/cache/trim", methods{http.MethodPost: a.trimCache})
	metrics := promhttp.HandlerFor(s.o.Gatherer, promhttp.HandlerOpts{})
	a.handle(r, "/metrics", methods{http.MethodGet: func(w http.ResponseWriter, r *http.Request) int {
		metrics.ServeHTTP(w, r)
		return http.StatusOK
	}})
	return s.routes(r)
}

// handle adds a route that refuses what a page of another site makes a browser
// send, under the name of that site or of this listener: the admin listener knows no credentials, so being able to reach it must
// not be enough.
func (a *admin) handle(r *mux.Router, template string, m methods) {
	a.Server.handle(r, template, func(w http.ResponseWriter, r *http.Request) int {
		switch {
		case !a.knowsHost(r.Host):
			return a.fail(w, r, errForeignHost)
		case a.origin.Check(r) != nil:
			return a.fail(w, r, errCrossOrigin)
		}
		return m.serve(w, r)
	})
}

var (
	errCrossOrigin = &requestError{status: http.StatusForbidden, message: "cross-origin request refused"}
	errForeignHost = &requestError{status: http.StatusForbidden, message: "the admin listener is on loopback and does not go by this host name"}
)

// knowsHost reports whether host, the Host header, is a name of the admin
// listener. On loopback a browser of this machine reaches it, and the page in it
// may come from a site whose own name now leads here (DNS rebinding): to the
// browser that is one origin, but the name gives it away.
func (a *admin) knowsHost(host string) bool {
	if !a.loopbackAdmin || host == "" { // every browser sends one
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		a.o.AdminHost != "" && host == strings.ToLower(a.o.AdminHost)
}

// readiness is the body of the readiness route.
type readiness struct {
	catalog.Readiness
	Draining bool `json:"draining,omitempty"`
}

func (a *admin) ready(w http.ResponseWriter, _ *http.Request) int {
	body := readiness{a.catalog.Ready(), a.draining.Load()}
	status := http.StatusOK
	if body.Draining {
		body.Ready = false
	}
	if !body.Ready {
		status = http.StatusServiceUnavailable
		w.Header()["Retry-After"] = retryAfter
	}
	return sendJSON(w, status, body)
}

func (a *admin) live(w http.ResponseWriter, _ *http.Request) int {
	return sendJSON(w, http.StatusOK, struct{}{})
}

func (a *admin) clusterConfig(w http.ResponseWriter, _ *http.Request) int {
	return sendJSON(w, http.StatusOK, a.catalog.ClusterConfig())
}

func (a *admin) clusterSchema(w http.ResponseWriter, _ *http.Request) int {
	return sendJSON(w, http.StatusOK, a.catalog.ClusterSchema())
}

func (a *admin) alterCluster(w http.ResponseWriter, r *http.Request) int {
	var body struct {
		Upsert map[string]any `json:"upsert"`
		Remove []string       `json:"remove"`
	}
	if err := a.decode(w, r, &body); err != nil {
		return a.fail(w, r, err)
	}
	version, err := a.catalog.AlterCluster(r.Context(), body.Upsert, body.Remove)
	var invalid *catalog.InvalidError
	switch {
	case errors.As(err, &invalid):
		// The form that operators know from Redpanda: property → message.
		w.Header().Set("X-Kv-Reason", reasonBadRequest)
		return sendJSON(w, http.StatusBadRequest, invalid.Properties)
	case err != nil:
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, map[string]int64{"config_version": version})
}

func (a *admin) features(w http.ResponseWriter, _ *http.Request) int {
	return sendJSON(w, http.StatusOK, map[string]any{"features": a.catalog.Features()})
}

func (a *admin) setFeature(w http.ResponseWriter, r *http.Request) int {
	var body struct {
		State string `json:"state"`
	}
	if err := a.decode(w, r, &body); err != nil {
		return a.fail(w, r, err)
	}
	name := mux.Vars(r)["feature"]
	if err := a.catalog.SetFeature(r.Context(), name, body.State); err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, catalog.Feature{Name: name, State: body.State})
}

func (a *admin) trimCache(w http.ResponseWriter, _ *http.Request) int {
	a.catalog.TrimCache()
	return sendJSON(w, http.StatusOK, struct{}{})
}

// decode reads the JSON body of a request into v. Members that v does not have
// are refused: a misspelt one would be a setting that silently is not made.
func (a *admin) decode(w http.ResponseWriter, r *http.Request, v any) error {
	body, release, err := a.readBody(w, r, maxAdminBody)
	if err != nil {
		return err
	}
	defer release()
	return decodeJSON(body, v)
}

func sendJSON(w http.ResponseWriter, status int, v any) int {
	return writeJSON(w, status, jsonMedia, v)
}

// wrongType says which member must be what, in the words of JSON.
func wrongType(e *json.UnmarshalTypeError) error {
	want := "another value"
	switch e.Type.Kind() {
	case reflect.Struct, reflect.Map:
		want = "an object"
	case reflect.Slice:
		want = "a list"
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Int32, reflect.Int64:
		want = fmt.Sprintf("a whole number of at most %d bits", e.Type.Bits()-1)
	}
	if e.Field == "" {
		return badRequest("request body must be " + want)
	}
	return badRequest(fmt.Sprintf("request body: %s must be %s", e.Field, want))
}

// decodeJSON decodes exactly one JSON value. Numbers keep their digits.
func decodeJSON(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == io.EOF {
		return badRequest("request body is empty, not a JSON object")
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return wrongType(wrong)
	}
	if err != nil {
		return badRequest("request body: " + strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return badRequest("request body: more than one JSON value")
	}
	return checkMembers(body, reflect.TypeOf(v).Elem())
}

// checkMembers refuses what encoding/json lets pass: null for an object, names in
// another case, and a name that is given twice, of which the last one would count. An
// operator who meant a dry run must not get something else.
func checkMembers(body []byte, t reflect.Type) error {
	if t.Kind() != reflect.Struct {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return badRequest("request body must be an object")
	}
	seen := make(map[string]bool)
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return badRequest("request body: " + err.Error())
		}
		key, _ := name.(string)
		switch {
		case seen[key]:
			return badRequest(fmt.Sprintf("request body: %.100q is given twice", key))
		case !hasMember(t, key):
			return badRequest(fmt.Sprintf("request body: unknown field %.100q", key))
		}
		seen[key] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return badRequest("request body: " + err.Error())
		}
	}
	return nil
}

func hasMember(t reflect.Type, name string) bool {
	for i := range t.NumField() {
		if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); tag == name {
			return true
		}
	}
	return false
}
