package transport

import "io"

// filter takes the body of a response piece by piece, and appends to dst what is to be
// passed on.
type filter interface {
	Feed(dst, piece []byte) []byte
	End(dst []byte) ([]byte, error) // after the last piece
	Rest(dst []byte) []byte         // after the last piece of a body that has broken off
}

// filtered is a body that goes through a filter while it is read.
type filtered struct {
	src    io.Reader
	filter filter
	failed func(error) error // turns src's error into that of Read
	out    []byte            // what is passed on
	at     int               // in out
	err    error             // to be returned after it
}

func (r *filtered) Read(p []byte) (int, error) {
	for len(p) > 0 && r.at == len(r.out) {
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
func (r *filtered) fill(p []byte) {
	n, err := r.src.Read(p)
	r.out, r.at, r.err = r.filter.Feed(r.out[:0], p[:n]), 0, err
	switch {
	case err == io.EOF:
		var cut error
		if r.out, cut = r.filter.End(r.out); cut != nil {
			r.err = cut
		}
	case err != nil:
		r.out, r.err = r.filter.Rest(r.out), r.failed(err)
	}
}
