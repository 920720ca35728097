package seam

import "io"

// Reader returns a reader of the response's body that feeds it as it is read, for
// programs that have a reader, as in httputil.ReverseProxy.ModifyResponse. Call Header
// before. The attempt ends at the end of the body; a body that breaks off has failed.
// Closing it only closes body: Call.Close is still necessary.
func (a *Attempt) Reader(body io.ReadCloser) io.ReadCloser {
	return &reader{ReadCloser: body, attempt: a}
}

type reader struct {
	io.ReadCloser
	attempt *Attempt
	out     []byte // of what was read, the part to be passed on
	at      int
	err     error // to be returned after it
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.at == len(r.out) {
		if r.err != nil {
			return 0, r.err
		}
		r.fill(p)
	}
	n := copy(p, r.out[r.at:])
	r.at += n
	return n, nil
}

// fill reads once, into p, when nothing is ready.
func (r *reader) fill(p []byte) {
	n, err := r.ReadCloser.Read(p)
	r.out, r.at, r.err = r.attempt.Feed(r.out[:0], p[:n]), 0, err
	switch {
	case err == io.EOF:
		var cut error
		if r.out, cut = r.attempt.End(r.out); cut != nil {
			r.err = cut
		}
	case err != nil:
		r.out = r.attempt.Rest(r.out)
		r.err = r.attempt.Fail(err)
	}
}
