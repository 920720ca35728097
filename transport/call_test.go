package transport

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// first is a stage that prefers endpoints by name: a, then b, then c.
type first struct{}

func (first) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i, c := range candidates {
		dst[i] = 1 / float64(1+strings.Index("abc", c.Endpoint.ID))
	}
}

// timeout is the error of a wait that timed out.
type timeout struct{ error }

func (timeout) Timeout() bool { return true }

type world struct {
	*Dispatcher
	at time.Time
}

// newWorld has endpoints a, b and c, which serve any model unless changed.
func newWorld(t testing.TB, change ...func([]endpick.Endpoint)) *world {
	w := &world{at: time.Unix(1000, 0)}
	endpoints := []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	for _, f := range change {
		f(endpoints)
	}
	router := rig.Must(endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: first{}, Weight: 1}}},
		Endpoints: endpoints, Clock: func() time.Time { return w.at },
	}))
	w.Dispatcher = rig.Must(NewDispatcher(Config{Router: router, RetryBurst: 10}))
	return w
}

// call returns a request that may be sent twice.
func (w *world) call() *Call {
	return &Call{d: w.Dispatcher, parsed: new(dialect.Call), method: "POST", harmless: true, Request: endpick.Request{Model: "m"}}
}

// sent sends a request to an endpoint.
func (w *world) sent(t testing.TB, id string) health.Attempt {
	ref, ok := w.config.Router.Ref(id)
	require.True(t, ok)
	return w.health.Sent(id, ref)
}

// remove removes an endpoint that has a request in flight, so that it is still listed.
func (w *world) remove(t testing.TB, id string) {
	rig.Must((&Call{d: w.Dispatcher}).adopt(id))
	require.NoError(t, w.config.Router.Remove(id))
	require.Len(t, w.config.Router.Endpoints(), 3)
}

// asked is where a p goes now: an ID, or an error.
func (w *world) asked(p *Call) string {
	lease, err := p.choose(context.Background())
	if err != nil {
		return err.Error()
	}
	defer lease.Done(endpick.Outcome{Status: endpick.Canceled})
	return lease.Endpoint().ID
}

// out puts an endpoint out.
func (w *world) out(t testing.TB, id string, err error) {
	for range 3 {
		w.sent(t, id).Because(err).Ended(Unreachable)
	}
	require.True(t, w.health.IsOut(id))
}

func TestResults(t *testing.T) {
	for kind, statuses := range map[Result][]int{
		Refused: {400, 401, 404, 408, 413, 428, 430, 451, 499, 501, 505},
		Erred:   {500, 502, 503, 504, 506, 529, 599},
	} {
		for _, status := range statuses {
			assert.Equal(t, kind, resultOf(status), status)
		}
	}
	assert.True(t, Unreachable.Failed() && Broken.Failed() && Erred.Failed())
	assert.False(t, Served.Failed() || Full.Failed() || Refused.Failed() || Canceled.Failed())
}

// How failures count against their endpoint, after three requests with these results.
func TestWhatFailuresSayOfEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name      string
		kinds     []Result // of each request, at a and then at b
		served    bool     // by any endpoint, in the end
		change    func(*Call)
		unhealthy string
		why       health.State
	}{
		{name: "another has served it", kinds: []Result{Erred}, served: true, unhealthy: "a", why: health.Failing},
		{name: "broken off, another has served it", kinds: []Result{Broken}, served: true, unhealthy: "a", why: health.Failing},
		{name: "refused, another has served it", kinds: []Result{Refused}, served: true, unhealthy: "a", why: health.Failing},
		{name: "two have failed it, so that neither stands out", kinds: []Result{Erred, Broken}, served: true},
		{name: "nobody has served it", kinds: []Result{Erred}},
		{name: "both have failed it", kinds: []Result{Erred, Erred}},
		{name: "nobody else was to be asked", kinds: []Result{Erred}, change: func(p *Call) { p.single = true }, unhealthy: "a", why: health.Failing},
		{name: "nobody else could be asked", kinds: []Result{Erred}, change: func(p *Call) { p.harmless = false }, unhealthy: "a", why: health.Failing},
		{name: "refused, which may not be repeated", kinds: []Result{Refused}, change: func(p *Call) { p.harmless = false }},
		{name: "unreachable", kinds: []Result{Unreachable}, unhealthy: "a", why: health.Unreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			for range 3 {
				p := w.call()
				if tc.change != nil {
					tc.change(p)
				}
				for i, kind := range tc.kinds {
					p.suspects.Add(w.sent(t, []string{"a", "b"}[i]), kind)
				}
				if tc.served {
					p.suspects.Served()
				}
				p.giveUp()
				p.suspects.Served() // failures count only once
			}
			unhealthy := slices.DeleteFunc([]string{"a", "b", "c"}, func(id string) bool { return !w.health.IsOut(id) })
			assert.Equal(t, tc.unhealthy, strings.Join(unhealthy, " "))
			if tc.why != health.Well {
				ref, _ := w.config.Router.Ref("a")
				assert.Equal(t, tc.why, w.health.Status(ref).State)
			}
		})
	}
}

// An endpoint that takes long to fail is not asked even if it is the only one, as
// long as it stays that way.
func TestRouteInVain(t *testing.T) {
	w := newWorld(t)
	w.out(t, "a", timeout{errors.New("no route")})
	p := w.call()
	p.exclude = append(p.exclude, "b", "c")
	_, err := p.choose(context.Background())
	require.ErrorAs(t, err, new(*endpick.NoEndpointError))
	assert.ErrorContains(t, err, "3 excluded, 0 draining; endpoints that are unhealthy and do not answer: 1")
	w.at = w.at.Add(time.Second)
	assert.Equal(t, "a", w.asked(p), "its trial")
}

func TestHasOthers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func([]endpick.Endpoint)
		do     func(w *world, p *Call)
		want   bool
	}{
		{name: "yes", want: true},
		{name: "of other models", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Adapters = []string{"x"}, []string{"y"} }},
		{name: "one of its model", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"x"}, []string{"x", "m"} }, want: true},
		{name: "one with its adapter", change: func(e []endpick.Endpoint) {
			e[1].Models, e[2].Models, e[2].Adapters = []string{"m"}, []string{"m"}, []string{"l"}
		},
			do: func(_ *world, p *Call) { p.Request.Adapter = "l" }, want: true},
		{name: "none with its adapter", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"m"}, []string{"m"} },
			do: func(_ *world, p *Call) { p.Request.Adapter = "l" }},
		{name: "no model asked for", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"x"}, []string{"x"} },
			do: func(_ *world, p *Call) { p.Request.Model = "" }, want: true},
		{name: "excluded", do: func(_ *world, p *Call) { p.exclude = append(p.exclude, "b", "c") }},
		{name: "one excluded", do: func(_ *world, p *Call) { p.exclude = append(p.exclude, "b") }, want: true},
		{name: "out and removed", do: func(w *world, _ *Call) {
			w.out(t, "b", nil)
			w.remove(t, "c")
		}},
		{name: "draining", do: func(w *world, _ *Call) {
			_ = w.config.Router.Drain("b")
			_ = w.config.Router.Drain("c")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var changes []func([]endpick.Endpoint)
			if tc.change != nil {
				changes = append(changes, tc.change)
			}
			w := newWorld(t, changes...)
			p := w.call()
			if tc.do != nil {
				tc.do(w, p)
			}
			assert.Equal(t, tc.want, len(p.others("a")) > 0)
		})
	}
}

// The blocks of a prompt are the request's alone, which lets go of them when it is answered.
func TestBlocksAreHeldOnce(t *testing.T) {
	p := &Call{d: newWorld(t).Dispatcher}
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("tell me more about it, ", 20) + `"}]}`
	require.NoError(t, p.read(Incoming{Method: "POST", Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte(body)}))
	require.NoError(t, p.prompt(t.Context()))
	assert.NotEmpty(t, p.Request.Blocks)
	assert.Nil(t, p.parsed.Request.Blocks)
}

// What a request has taken of the room for what may be resumed, it gives back, once.
func TestWhatWasSavedIsGivenBack(t *testing.T) {
	c := newWorld(t).call()
	c.t, c.saved = new(Transport), 7
	c.t.saved.Add(10)
	c.drop()
	c.drop()
	assert.EqualValues(t, 3, c.t.saved.Load())
}

func request(t testing.TB, r io.Reader, length int64, coding string) *http.Request {
	req := rig.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/v1/completions", r))
	req.ContentLength = length
	if coding != "" {
		req.Header.Set("Content-Encoding", coding)
	}
	return req
}

// However long a body is, in whatever pieces it comes and whatever length was
// announced, it is read whole and takes hardly more memory than its length.
func TestReadBody(t *testing.T) {
	const limit = 3 * firstRead
	for _, size := range []int{0, 1, 511, 512, 513, firstRead - 1, firstRead, firstRead + 1, 2*firstRead + 2, limit - 1, limit} {
		text := strings.Repeat("x", size)
		for name, length := range map[string]int64{"as announced": int64(size), "unknown": -1, "more than announced": int64(size / 2), "less than announced": limit} {
			for how, r := range map[string]io.Reader{
				"at once": strings.NewReader(text), "with its end": iotest.DataErrReader(strings.NewReader(text)), "in halves": iotest.HalfReader(strings.NewReader(text)),
			} {
				body, unpacked, err := reading(limit).readBody(request(t, r, length, ""))
				require.NoError(t, err)
				assert.False(t, unpacked)
				require.Equal(t, size, len(body), "%s, %s", name, how)
				require.True(t, string(body) == text)
				assert.LessOrEqual(t, cap(body), size+size/8+1024, "%d, %s, %s", size, name, how)
			}
		}
	}
	for _, length := range []int64{-1, math.MaxInt64} { // of a body without a limit
		body, _, err := reading(math.MaxInt64).readBody(request(t, strings.NewReader(strings.Repeat("x", 5000)), length, ""))
		require.NoError(t, err)
		assert.Len(t, body, 5000)
	}
	for name, length := range map[string]int64{"announced": limit + 1, "unknown": -1, "lied about": 5} {
		_, _, err := reading(limit).readBody(request(t, strings.NewReader(strings.Repeat("x", limit+1)), length, ""))
		var tooLarge *BodyError
		require.ErrorAs(t, err, &tooLarge, name)
		assert.EqualValues(t, limit, tooLarge.Limit)
	}
}

// An announced body is copied no more often than growing requires: all in all,
// twice its length is allocated.
func TestAnnouncedBodiesAreReadIntoPlace(t *testing.T) {
	for _, size := range []int{firstRead / 2, 3 * firstRead, 9 * firstRead} {
		req := request(t, strings.NewReader(strings.Repeat("x", size)), int64(size), "")
		var err error
		assert.Less(t, rig.Allocated(func() { _, _, err = reading(32 << 20).readBody(req) }), 3*size)
		require.NoError(t, err)
	}
}

// An announced length costs the gateway nothing: memory grows with what has arrived.
func TestAnnouncedLengthsAreNotBelieved(t *testing.T) {
	for sent := 1; sent <= 4<<20; sent *= 4 {
		broke := errors.New("broke")
		req := request(t, io.MultiReader(strings.NewReader(strings.Repeat("x", sent)), iotest.ErrReader(broke)), 32<<20, "")
		var err error
		assert.Less(t, rig.Allocated(func() { _, _, err = reading(32 << 20).readBody(req) }), 4*sent+2*firstRead, "%d bytes sent", sent)
		require.ErrorIs(t, err, broke)
	}
}

func TestReadBodyLooksAtItsClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reads := 0
	r := rig.Reader(func(p []byte) (int, error) {
		if reads++; reads == 3 {
			cancel()
		}
		return copy(p, "more"), nil
	})
	_, _, err := reading(1 << 30).readBody(request(t, r, -1, "").WithContext(ctx))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 3, reads)
}

// reading is a dispatcher whose bodies have at most so many bytes.
func reading(most int64) *Dispatcher {
	enlarge := func(io.Reader) (io.Reader, error) { return strings.NewReader("large"), nil }
	return &Dispatcher{config: Config{MaxBodyBytes: most, Decoders: map[string]func(io.Reader) (io.Reader, error){
		"x": enlarge, "mad": func(io.Reader) (io.Reader, error) { panic("mad") },
	}}}
}

func TestCompressedBodies(t *testing.T) {
	const text = `{"model":"m","prompt":"x"}`
	for _, tc := range []struct{ coding, body, want string }{
		{"gzip", string(packed(t, text, gzipped)), text}, {"x-gzip", string(packed(t, text, gzipped)), text}, {" GZIP ", string(packed(t, text, gzipped)), text},
		{"deflate", string(packed(t, text, zlibbed)), text}, {"deflate", string(packed(t, text, deflated(6))), text},
		{"identity", text, ""}, {"br", text, ""}, {"zstd", text, ""}, {"gzip, br", text, ""}, {"gzip, gzip", text, ""}, {"X", "small", "large"}, {"", text, ""}, {"gzip", "", ""},
	} {
		body, unpacked, err := reading(1 << 20).readBody(request(t, strings.NewReader(tc.body), -1, tc.coding))
		require.NoError(t, err, tc.coding)
		assert.Equal(t, tc.want != "", unpacked, tc.coding)
		if tc.want == "" {
			tc.want = tc.body // unchanged
		}
		assert.Equal(t, tc.want, string(body), tc.coding)
	}
	_, _, err := reading(1 << 20).readBody(request(t, strings.NewReader("x"), -1, "mad"))
	require.ErrorAs(t, err, new(*endpick.PanicError))
	whole := string(packed(t, text, gzipped))
	for n := 1; n < len(whole); n++ {
		_, _, err := reading(1 << 20).readBody(request(t, strings.NewReader(whole[:n]), -1, "gzip"))
		require.ErrorIs(t, err, ErrRead, "%d bytes", n)
		require.Equal(t, 400, StatusOf(err))
	}
}

// A body packed more tightly than any human text costs no more than its sender
// has sent.
func TestBombsAreRefused(t *testing.T) {
	const freeInflation, maxInflation = 64 << 10, 64
	for _, size := range []int{freeInflation, 1 << 20, 16 << 20} {
		bomb := string(packed(t, strings.Repeat("x", size), gzipped))
		req := request(t, strings.NewReader(bomb), -1, "gzip")
		var body []byte
		var err error
		used := rig.Allocated(func() { body, _, err = reading(32 << 20).readBody(req) })
		assert.Less(t, used, 4*(freeInflation+maxInflation*len(bomb))+(1<<20))
		if size == freeInflation {
			require.NoError(t, err)
			assert.Len(t, body, size)
			continue
		}
		require.ErrorAs(t, err, new(*BodyError))
		assert.Equal(t, 413, StatusOf(err))
	}
	// The limit on bodies also applies after unpacking.
	_, _, err := reading(1000).readBody(request(t, bytes.NewReader(packed(t, strings.Repeat("x", 1001), gzipped)), -1, "gzip"))
	var tooLarge *BodyError
	require.ErrorAs(t, err, &tooLarge)
	assert.EqualValues(t, 1000, tooLarge.Limit)
}

// packed is a text in a coding.
func packed(t testing.TB, text string, w func(io.Writer) io.WriteCloser) []byte {
	var b bytes.Buffer
	c := w(&b)
	rig.Must(io.WriteString(c, text))
	require.NoError(t, c.Close())
	return b.Bytes()
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }
func zlibbed(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }

func deflated(level int) func(io.Writer) io.WriteCloser {
	return func(w io.Writer) io.WriteCloser {
		c, _ := flate.NewWriter(w, level)
		return c
	}
}

func TestCodings(t *testing.T) {
	texts := []string{"", "a", strings.Repeat("some text that repeats itself ", 1000)}
	for _, text := range texts {
		for _, tc := range []struct {
			coding string
			packed []byte
		}{
			{"gzip", packed(t, text, gzipped)},
			{"X-GZIP", packed(t, text, gzipped)},
			{"gzip", append(packed(t, text[:len(text)/2], gzipped), packed(t, text[len(text)/2:], gzipped)...)}, // two members
			{"deflate", packed(t, text, zlibbed)},
			{"Deflate", packed(t, text, deflated(flate.BestCompression))},
			{"deflate", packed(t, text, deflated(flate.NoCompression))},
			{"deflate", packed(t, text, deflated(flate.HuffmanOnly))},
		} {
			open := decoders(nil).of(tc.coding)
			require.NotNil(t, open, tc.coding)
			got, err := io.ReadAll(&decoding{src: iotest.OneByteReader(bytes.NewReader(tc.packed)), open: open})
			require.NoError(t, err, tc.coding)
			assert.Equal(t, text, string(got), tc.coding)
		}
	}
	got, err := io.ReadAll(&decoding{src: strings.NewReader(""), open: decoders(nil).of("gzip")})
	require.NoError(t, err, "nothing was packed, and is nothing")
	assert.Empty(t, got)
	for _, unknown := range []string{"", "identity", " , ", "br", "zstd", "gzip, br", "br, gzip", "compress", "gzip,gzip"} {
		assert.Nil(t, decoders(nil).of(unknown), unknown)
	}
}

// Deflate data that begins almost like zlib is still deflate.
func TestDeflateThatLooksLikeZlib(t *testing.T) {
	checked := packed(t, strings.Repeat("x", 31), deflated(flate.NoCompression))
	require.Equal(t, []byte{0, 31}, checked[:2], "a multiple of 31, of another method")
	named := packed(t, strings.Repeat("x", 30), deflated(flate.NoCompression))
	named[0] |= 8 // of the bits that a stored block does not use
	require.NotZero(t, (8<<8|int(named[1]))%31, "the method, without its check")
	for length, body := range map[int][]byte{31: checked, 30: named} {
		got := rig.Must(io.ReadAll(&decoding{src: bytes.NewReader(body), open: decoders(nil).of("deflate")}))
		assert.Equal(t, strings.Repeat("x", length), string(got))
	}
}

// Broken data is an error, the same at each read, and no panic.
func TestWhatIsBroken(t *testing.T) {
	whole := packed(t, strings.Repeat("text ", 100), gzipped)
	for name, tc := range map[string]struct {
		coding string
		src    io.Reader
	}{
		"no gzip":           {"gzip", strings.NewReader(`{"model":"m"}`)},
		"nothing, deflate":  {"deflate", strings.NewReader("")},
		"cut":               {"gzip", bytes.NewReader(whole[:len(whole)/2])},
		"cut checksum":      {"gzip", bytes.NewReader(whole[:len(whole)-1])},
		"wrong checksum":    {"gzip", bytes.NewReader(append(bytes.Clone(whole[:len(whole)-5]), 1, 2, 3, 4, 5))},
		"no deflate":        {"deflate", strings.NewReader("\xff\xff\xff")},
		"zlib with no body": {"deflate", strings.NewReader("\x78\x9c")},
		"a source breaks":   {"gzip", iotest.ErrReader(errors.New("reset"))},
	} {
		r := &decoding{src: tc.src, open: decoders(nil).of(tc.coding)}
		_, err := io.ReadAll(r)
		require.Error(t, err, name)
		n, again := r.Read(make([]byte, 10))
		assert.Zero(t, n, name)
		assert.Equal(t, err, again, name)
	}
}

// Nothing is read or decoded before the first Read.
func TestOpenedWhenRead(t *testing.T) {
	opened := 0
	r := &decoding{src: strings.NewReader("text"), open: func(src io.Reader) (io.Reader, error) {
		opened++
		return src, nil
	}}
	assert.Zero(t, opened)
	assert.Equal(t, "text", string(rig.Must(io.ReadAll(iotest.OneByteReader(r)))))
	assert.Equal(t, 1, opened)

	refused := errors.New("refused")
	r = &decoding{open: func(io.Reader) (io.Reader, error) {
		opened++
		return nil, refused
	}}
	for range 2 {
		require.ErrorIs(t, rig.Err(r.Read(nil)), refused)
	}
	assert.Equal(t, 2, opened, "once more, not at each read")
}

func TestUnpackedLimit(t *testing.T) {
	for _, tc := range []struct {
		n    int
		most int64
		want int64
	}{
		{0, 1 << 20, 64 << 10},
		{1, 1 << 20, 64<<10 + 64},
		{1000, 1 << 30, 64<<10 + 64_000},
		{1 << 20, 32 << 20, 32 << 20},
		{0, 10, 10},
		{1 << 30, 1 << 50, 64<<10 + 64<<30},
	} {
		assert.Equal(t, tc.want, unpackedLimit(tc.n, tc.most))
	}
}

// Any bytes yield a text or an error, and a packed text comes back.
func FuzzDecoder(f *testing.F) {
	f.Add("gzip", packed(f, "text", gzipped))
	f.Add("deflate", packed(f, "text", zlibbed))
	f.Add("deflate", packed(f, "text", deflated(flate.DefaultCompression)))
	f.Add("x-gzip", []byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, coding string, body []byte) {
		if open := decoders(nil).of(coding); open != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(&decoding{src: bytes.NewReader(body), open: open}, unpackedLimit(len(body), 1<<20)))
			got := rig.Must(io.ReadAll(&decoding{src: bytes.NewReader(packed(t, string(body), gzipped)), open: decoders(nil).of("gzip")}))
			require.Equal(t, body, got)
		}
	})
}

func TestPayloadReadsItsPiecesAsOne(t *testing.T) {
	for want, pieces := range map[string][][]byte{
		"":          nil,
		"abc":       {[]byte("abc")},
		"abcdefghi": {[]byte("abc"), nil, []byte("d"), {}, []byte("efghi"), nil},
	} {
		p := newPayload(pieces)
		assert.EqualValues(t, len(want), p.size)
		for range 2 {
			r := rig.Must(p.open())
			require.NoError(t, iotest.TestReader(r, []byte(want)))
			require.NoError(t, r.Close())
		}
	}
}

// A reader lets go of the bytes with the last of them, or when it is closed, because
// net/http keeps it; what is released can't be opened again.
func TestPayloadLetsItsBytesGo(t *testing.T) {
	p := newPayload([][]byte{[]byte("abc"), []byte("def")})
	open := func() *payloadReader {
		return rig.Must(p.open()).(*payloadReader)
	}
	whole, closed := open(), open()
	rig.Must(io.ReadFull(closed, make([]byte, 5)))
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	assert.Nil(t, closed.left)
	assert.Equal(t, io.EOF, rig.Err(closed.Read(make([]byte, 1))))
	p.release()
	assert.Nil(t, p.pieces)
	require.ErrorIs(t, rig.Err(p.open()), http.ErrBodyReadAfterClose)
	got := make([]byte, 6)
	rig.Must(io.ReadFull(whole, got))
	assert.Equal(t, "abcdef", string(got), "who has opened it reads on")
	assert.Empty(t, whole.left)
}

// Endpoints come and go: of those that sleep, or were woken, not more than so many are remembered.
func TestSleepersAreBounded(t *testing.T) {
	of := map[string]time.Time{}
	for i := range maxSleepers + 2 {
		remember(of, strconv.Itoa(i), time.Time{})
	}
	assert.Len(t, of, 2)
}
