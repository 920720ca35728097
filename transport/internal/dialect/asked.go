package dialect

import "bytes"

// Usage is asked for in streams of OpenAI's older APIs: what the client has not asked for, it does
// not get to see.

// maxOptions is longer than any stream_options; longer ones are left alone.
const maxOptions = 4 << 10

// askForUsage returns the body to send, in pieces that refer to it. It makes
// the engine report usage in a stream whose client did not ask for it, and
// reports whether that usage must be hidden from the client.
func (c *request) askForUsage() (pieces [][]byte, hide bool) {
	whole := [][]byte{c.body}
	v := c.parts[optionsPart]
	if !c.stream || !c.api.asksUsage || len(v) > maxOptions {
		return whole, false
	}
	const want = `"include_usage":true`
	if v == nil {
		return [][]byte{c.body[:c.top], []byte(`"stream_options":{` + want + `},`), c.body[c.top:]}, true
	}
	if wish := string(field(v, "include_usage")); !isNull(v) && (wish != "null" && wish != "false" && wish != "0" || isTrue(field(v, "continuous_usage_stats"))) {
		return whole, false // the client has asked (engines in Python take 1 and "true"), or engines differ in what it gets then
	}
	options := []byte("{" + want)
	for m := membersOf(v); m.member(); {
		if m.value(); string(m.key) != "include_usage" {
			options = append(append(options, ','), v[m.start:m.i]...)
		}
	}
	return [][]byte{c.body[:c.optionsEnd-len(v)], append(options, '}'), c.body[c.optionsEnd:]}, true
}

// isUsage reports whether a chunk is the one that was asked for, with usage and without choices. What
// else it has, such as vLLM's system_fingerprint and llama.cpp's timings, would be in the chunk that
// ends the last choice.
func isUsage(chunk []byte) bool {
	var usage, choices, failure []byte
	pick(chunk, into{"usage", &usage}, into{"choices", &choices}, into{"error", &failure})
	return isObject(usage) && !hasElements(choices) && !present(failure)
}

// inAll are members that each chunk has, with values of its own.
var inAll = map[string]bool{"id": true, "object": true, "created": true, "model": true, "choices": true, "usage": true}

// withMembers appends an event to dst, with the members of another chunk that its own does not have.
func withMembers(dst, event, from []byte) []byte {
	start, end := bytes.IndexByte(event, '{'), bytes.LastIndexByte(event, '}')
	if start < 0 || end < start {
		return append(dst, event...)
	}
	chunk := event[start : end+1]
	dst = append(dst, event[:end]...)
	for m := membersOf(from); m.member(); {
		if v := m.value(); !isNull(v) && !inAll[string(m.key)] && field(chunk, string(m.key)) == nil {
			dst = append(append(dst, ','), from[m.start:m.i]...)
		}
	}
	return append(dst, event[end:]...)
}
