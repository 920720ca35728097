package seam

import "io"

// Reader passes the body of the response on, fed as it is read: for programs that have
// it as a reader, such as httputil.ReverseProxy.ModifyResponse. Header has been called
// before. At its end the attempt ends; a body that breaks off has failed. Closing it
// closes body, and no more: Call.Close is still owed.
func (a *Attempt) Reader(body io.ReadCloser) io.ReadCloser {
	return &reader{ReadCloser: body, attempt: a}
}

type reader struct {
	io.ReadCloser
	attempt *Attempt
	out     []byte // what is passed on of what was read
	at      int
	err     error // after it
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

// fill reads once, by way of p; nothing is ready.
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
