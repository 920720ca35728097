package transport

import "github.com/endpick/endpick/prefix"

// SetHashKey changes the key that prompts are hashed with, as Config.HashKey
// sets it, for requests that come from now on. An index then starts anew: what
// it holds under the old key is matched by nothing and gives way in time. It may
// be called at any time, from any goroutine.
func (t *Transport) SetHashKey(key prefix.Key) { t.desk.Reader.SetHashKey(key) }
