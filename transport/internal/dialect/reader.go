package dialect

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix"
)

// The headers of requests that are endpick's own.
const (
	PriorityHeader = "X-Endpick-Priority"
	SessionHeader  = "X-Endpick-Session"
)

// Config configures a [Reader]. The zero value is valid. Most fields are those of
// transport.Config.
type Config struct {
	// MaxItems is how many messages, parts, tools, tool calls and prompts a
	// request may have, all counted together. Zero: 65,536. Short bodies may have
	// fewer: 2,048 and one for each 8 bytes.
	MaxItems    int
	SharedCache bool
	HashKey     prefix.Key // zero: one that this process has drawn at random
	// DisableUsage does not ask for usage in streams whose clients did not.
	DisableUsage bool
	// Resume allows [Call.Resume].
	Resume bool
	Pass   Passes
	Tokens func(ctx context.Context, req *endpick.Request, path string, body []byte) (ids []uint32, rest int)
	// Sketch enables [Call.Sketch]; SketchText adds texts to it.
	Sketch, SketchText bool
}

// Reader reads requests, and learns from the meters of their responses how many
// tokens a text has and how long answers are. It has no connections. It is safe
// for concurrent use.
type Reader struct {
	config  Config
	learned learner
	hashKey atomic.Pointer[prefix.Key]
	stored  storedTable
}

// NewReader returns a reader, or an [endpick.ConfigError].
func NewReader(config Config) (*Reader, error) {
	if err := cmp.Or(check.Default("transport.Config.MaxItems", &config.MaxItems, 1<<16), config.Pass.validate()); err != nil {
		return nil, err
	}
	r := &Reader{config: config}
	r.SetHashKey(config.HashKey)
	return r, nil
}

// SetHashKey changes the key that prompts are hashed with, for requests that are
// read from now on. An index then starts from scratch: what it holds under the
// old key never matches again, and is evicted in time.
func (r *Reader) SetHashKey(key prefix.Key) { r.hashKey.Store(&key) }

// Incoming is a request as it arrived.
type Incoming struct {
	Method, Path string      // a path that Allow has returned
	Query        string      // raw query of the URL, for APIs that name the model there
	Header       http.Header // keys in their canonical form
	// Body is complete and uncompressed. The [Call] refers to it, so it must not
	// change afterwards.
	Body []byte
}
