package transport

import "github.com/endpick/endpick/prefix"

// SetHashKey changes the key that prompts are hashed with, as Config.Dialect
// sets it, for requests that come from now on; see [dialect.Reader.SetHashKey].
// It may be called at any time, from any goroutine.
func (t *Transport) SetHashKey(key prefix.Key) { t.reader.SetHashKey(key) }
