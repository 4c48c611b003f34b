package catalog

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// kind is the type of a property's value.
type kind uint8

const (
	// boolKind is true or false.
	boolKind kind = iota
	// intKind is a whole number of the property's unit.
	intKind
	// ratioKind is a decimal number, written without an exponent.
	ratioKind
	// enumKind is one of the property's values.
	enumKind
	// listKind is a set of the property's values, written with commas.
	listKind
)

// String returns the name that the schema route and the documentation use.
func (k kind) String() string {
	return [...]string{"bool", "integer", "number", "string", "list"}[k]
}

// property describes one switch or setting. The two tables of them (cluster
// and topic) are the only place that knows names, bounds and defaults:
// validation, the schema route, describe and docs/configuration.md come from
// there.
type property struct {
	Name string
	Kind kind
	// Unit of an Int: "bytes", "ms", or empty for a count.
	Unit string
	// Default is in canonical form, as if a user had set it.
	Default string
	// StoreDefault is the default where an object store is configured; empty:
	// the same as Default.
	StoreDefault string
	// Min and Max bound an Int or a Ratio, both inclusive.
	Min, Max int64
	// Unlimited permits -1 beside Min..Max.
	Unlimited bool
	// Values are what an Enum or a List may hold.
	Values []string
	// Doc says in a sentence what the property does.
	Doc string
}

// defaultValue returns the value that holds while nobody has set one.
func (p *property) defaultValue(store bool) string {
	if store && p.StoreDefault != "" {
		return p.StoreDefault
	}
	return p.Default
}

// canonical checks v, which comes from outside as a string or as a JSON value,
// and returns the one spelling in which the value is kept.
func (p *property) canonical(v any) (string, error) {
	switch p.Kind {
	case boolKind:
		return p.canonicalBool(v)
	case intKind:
		return p.canonicalInt(v)
	case ratioKind:
		return p.canonicalRatio(v)
	case listKind:
		return p.canonicalList(v)
	default:
		s, ok := v.(string)
		if !ok || !slices.Contains(p.Values, strings.TrimSpace(s)) {
			return "", fmt.Errorf("must be one of %s", strings.Join(p.Values, ", "))
		}
		return strings.TrimSpace(s), nil
	}
}

func (p *property) canonicalBool(v any) (string, error) {
	switch v := v.(type) {
	case bool:
		return strconv.FormatBool(v), nil
	case string:
		s := strings.ToLower(strings.TrimSpace(v))
		if s == "true" || s == "false" {
			return s, nil
		}
	}
	return "", fmt.Errorf("must be true or false")
}

func (p *property) canonicalInt(v any) (string, error) {
	n, ok := wholeNumber(v)
	if !ok {
		return "", fmt.Errorf("must be a whole number%s", p.unitSuffix())
	}
	if p.Unlimited && n == -1 {
		return "-1", nil
	}
	if n < p.Min || n > p.Max {
		return "", fmt.Errorf("must be %s", p.bounds())
	}
	return strconv.FormatInt(n, 10), nil
}

// wholeNumber accepts decimal strings and the forms in which Go's JSON
// decoders deliver a number. 1e3 is a whole number in JSON, not in a string.
func wholeNumber(v any) (int64, bool) {
	switch v := v.(type) {
	case string:
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		return n, err == nil
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, true
		}
		f, err := v.Float64()
		if err != nil {
			return 0, false
		}
		return wholeNumber(f)
	case float64:
		// Above 2^53 a float no longer says which whole number was meant.
		if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
			return 0, false
		}
		return int64(v), true
	case int:
		return int64(v), true
	case int64:
		return v, true
	}
	return 0, false
}

func (p *property) canonicalRatio(v any) (string, error) {
	f, ok := decimalNumber(v)
	if !ok || f < float64(p.Min) || f > float64(p.Max) { // NaN is no decimal number
		return "", fmt.Errorf("must be a number %s", p.bounds())
	}
	// The sum takes the sign off a zero.
	return strconv.FormatFloat(f+0, 'f', -1, 64), nil
}

// decimalNumber accepts decimal strings and the forms in which Go's JSON
// decoders deliver a number.
func decimalNumber(v any) (float64, bool) {
	var s string
	switch v := v.(type) {
	case string:
		s = strings.TrimSpace(v)
	case json.Number:
		s = v.String()
	case float64:
		return v, !math.IsNaN(v)
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	}
	// Go's parser also knows hexadecimal, underscores, infinity and NaN.
	if strings.Trim(s, "0123456789.eE+-") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

func (p *property) canonicalList(v any) (string, error) {
	var items []string
	switch v := v.(type) {
	case string:
		items = strings.Split(v, ",")
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return "", fmt.Errorf("must be a list of %s", strings.Join(p.Values, ", "))
			}
			items = append(items, s)
		}
	}
	set := make(map[string]bool)
	for _, e := range items {
		e = strings.TrimSpace(e)
		if !slices.Contains(p.Values, e) {
			return "", fmt.Errorf("must be a list of %s", strings.Join(p.Values, ", "))
		}
		set[e] = true
	}
	if len(set) == 0 {
		return "", fmt.Errorf("must be a list of %s", strings.Join(p.Values, ", "))
	}
	return strings.Join(slices.Sorted(maps.Keys(set)), ","), nil
}

// bounds renders the permitted range of an Int or a Ratio for messages and
// documents.
func (p *property) bounds() string {
	var s string
	switch {
	case p.Max == math.MaxInt64:
		s = fmt.Sprintf("at least %d", p.Min)
	default:
		s = fmt.Sprintf("from %d to %d", p.Min, p.Max)
	}
	s += p.unitSuffix()
	if p.Unlimited && p.Min > -1 {
		s += ", or -1"
	}
	return s
}

func (p *property) unitSuffix() string {
	if p.Unit == "" {
		return ""
	}
	return " " + p.Unit
}

// typed returns a canonical value as the JSON type that fits the property.
func (p *property) typed(canonical string) any {
	switch p.Kind {
	case boolKind:
		return canonical == "true"
	case intKind:
		// canonical came out of canonicalInt, so it is a number.
		n, _ := strconv.ParseInt(canonical, 10, 64)
		return n
	case ratioKind:
		f, _ := strconv.ParseFloat(canonical, 64) // likewise
		return f
	default:
		return canonical
	}
}

// table is a set of properties with their order of documentation.
type table []property

func (t table) find(name string) *property {
	for i := range t {
		if t[i].Name == name {
			return &t[i]
		}
	}
	return nil
}

// overrides are the values that somebody has set, by name, canonical.
type overrides map[string]string

// change is what an edit does to one property; both sides are effective
// values, so that a log line shows what was and what is in force.
type change struct {
	Name     string
	Old, New string
}

// edit applies upsert and remove to old and returns the new overrides and the
// properties whose effective value changes, by name. An upsert of nil is a
// removal. Every refused property is named in the *InvalidError; old is never
// modified.
func (t table) edit(old overrides, upsert map[string]any, remove []string, store bool) (overrides, []change, error) {
	next := maps.Clone(old)
	if next == nil {
		next = overrides{}
	}
	bad := &InvalidError{}
	for _, name := range remove {
		if t.find(name) == nil {
			bad.add(name, "no such property")
			continue
		}
		if v, ok := upsert[name]; ok && v != nil {
			bad.add(name, "is both set and removed")
			continue
		}
		delete(next, name)
	}
	for name, v := range upsert {
		p := t.find(name)
		if p == nil {
			bad.add(name, "no such property")
			continue
		}
		if v == nil {
			delete(next, name)
			continue
		}
		c, err := p.canonical(v)
		if err != nil {
			bad.add(name, err.Error())
			continue
		}
		next[name] = c
	}
	if err := bad.orNil(); err != nil {
		return nil, nil, err
	}
	var changes []change
	for i := range t {
		p := &t[i]
		before, after := old.get(p, store), next.get(p, store)
		if before != after {
			changes = append(changes, change{p.Name, before, after})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.Name, b.Name) })
	return next, changes, nil
}

// check verifies overrides that come from a file.
func (t table) check(o overrides) error {
	for name, v := range o {
		p := t.find(name)
		if p == nil {
			return fmt.Errorf("unknown property %q", name)
		}
		c, err := p.canonical(v)
		if err != nil {
			return fmt.Errorf("property %s: %w", name, err)
		}
		if c != v {
			return fmt.Errorf("property %s: %q is not in canonical form", name, v)
		}
	}
	return nil
}

func (o overrides) get(p *property, store bool) string {
	if v, ok := o[p.Name]; ok {
		return v
	}
	return p.defaultValue(store)
}

// view reads effective values out of overrides. Asking for a name that the
// table does not have is a bug of the caller.
type view struct {
	table table
	over  overrides
	store bool
}

func (v view) text(name string) string { return v.over.get(v.table.find(name), v.store) }

func (v view) flag(name string) bool { return v.text(name) == "true" }

func (v view) ratio(name string) float64 {
	p := v.table.find(name)
	f, _ := p.typed(v.over.get(p, v.store)).(float64)
	return f
}

func (v view) number(name string) int64 {
	p := v.table.find(name)
	n, _ := p.typed(v.over.get(p, v.store)).(int64)
	return n
}

// InvalidError says which properties (or "name", "partitions") of a request
// were refused and why. Nothing of the request has been applied.
type InvalidError struct {
	Properties map[string]string
}

func (e *InvalidError) add(name, message string) {
	if e.Properties == nil {
		e.Properties = make(map[string]string)
	}
	if _, ok := e.Properties[name]; !ok {
		e.Properties[name] = message
	}
}

func (e *InvalidError) orNil() error {
	if len(e.Properties) == 0 {
		return nil
	}
	return e
}

// Error lists the refused properties by name.
func (e *InvalidError) Error() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(e.Properties)) {
		parts = append(parts, name+": "+e.Properties[name])
	}
	return strings.Join(parts, "; ")
}
