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
	if !isObject(v) && !isNull(v) || isTrue(field(v, "include_usage")) {
		return whole, false // the engine will refuse it, or the client has asked
	}
	options := []byte("{" + want)
	for m := membersOf(v); m.member(); {
		if m.value(); string(m.key) != "include_usage" {
			options = append(append(options, ','), v[m.start:m.i]...)
		}
	}
	return [][]byte{c.body[:c.optionsEnd-len(v)], append(options, '}'), c.body[c.optionsEnd:]}, true
}

// unasked says what to change in a chunk so that the client gets what it would have got if
// usage had not been asked for. ended says that the chunk ends a choice. It has usage, or null.
//
// The chunk that was asked for has usage and no choices: it is dropped. What else it has, such
// as vLLM's system_fingerprint and llama.cpp's timings, would be in the chunk that ends the last
// choice, if that does not have it anyway. In the chunks before, usage may be null, which is
// removed: figures would be there unasked.
func unasked(data []byte, ended bool) edit {
	e := edit{hold: ended}
	figures, empty, more := false, false, false
	for m := membersOf(data); m.member(); {
		start, v := m.start, m.value()
		switch string(m.key) {
		case "usage":
			e.cut, e.cutEnd, figures = 0, 0, isObject(v)
			if isNull(v) {
				e.cut, e.cutEnd = withComma(data, start, m.i)
			}
		case "choices":
			empty = !hasElements(v)
			more = more || !empty
		case "error":
			empty, more = empty && isNull(v), more || !isNull(v)
		default:
			more = more || !inAll[string(m.key)] && !isNull(v)
		}
	}
	if figures && (empty || !more) {
		return edit{drop: true, join: data}
	}
	return e
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

// withComma extends the bounds of a member by one adjacent comma.
func withComma(data []byte, at, end int) (int, int) {
	if i := skipSpace(data, end); i < len(data) && data[i] == ',' {
		return at, i + 1
	}
	i := at - 1
	for i > 0 && skipSpace(data[i:i+1], 0) == 1 {
		i--
	}
	if i > 0 && data[i] == ',' {
		return i, end
	}
	return at, end
}
