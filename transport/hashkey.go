package transport

import "github.com/endpick/endpick/prefix"

// SetHashKey changes the key that prompts are hashed with (Config.HashKey), for
// requests that arrive from now on. An index then starts from scratch: what it
// holds under the old key never matches again, and is evicted in time. It may be
// called at any time, from any goroutine.
func (t *Transport) SetHashKey(key prefix.Key) { t.desk.Reader.SetHashKey(key) }
