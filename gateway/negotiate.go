package gateway

import (
	"net/http"
	"strconv"
	"strings"
)

// wantsJSON reports whether the client asks for the record as JSON: it names
// application/json, with a weight that is not zero and not below that of a raw
// value it names too. Wildcards mean the raw value.
func wantsJSON(h http.Header) bool {
	accept := h["Accept"]
	if len(accept) == 0 || len(accept) == 1 && accept[0] == "*/*" {
		return false
	}
	jsonWeight, rawWeight := 0.0, 0.0
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			media, params, _ := strings.Cut(item, ";")
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "application/json":
				jsonWeight = max(jsonWeight, weight(params))
			case "application/octet-stream":
				rawWeight = max(rawWeight, weight(params))
			}
		}
	}
	return jsonWeight > 0 && jsonWeight >= rawWeight
}

// weight gives the q of a media range's parameters, 1 without one.
func weight(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(p, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || !(q >= 0 && q <= 1) {
				return 0
			}
			return q
		}
	}
	return 1
}

// noneMatch reports whether a tag of the If-None-Match lines stands for etag, so
// that the client has the record already. The comparison is the weak one: a W/
// in front does not count. A tag is what stands between two quotes, commas
// included; from a malformed place on, a line is not looked at.
func noneMatch(lines []string, etag string) bool {
	for _, line := range lines {
		if strings.TrimSpace(line) == "*" {
			return true
		}
		for rest := line; ; {
			rest = strings.TrimLeft(rest, " \t,")
			rest = strings.TrimPrefix(rest, "W/")
			if len(rest) == 0 || rest[0] != '"' {
				break
			}
			end := strings.IndexByte(rest[1:], '"')
			if end < 0 {
				break
			}
			if rest[:end+2] == etag {
				return true
			}
			rest = rest[end+2:]
		}
	}
	return false
}
