package main

import (
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// codings are what agents compress requests with, besides gzip and deflate, which transport
// reads.
var codings = map[string]func(io.Reader) (io.Reader, error){
	"br": func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil },
	"zstd": func(r io.Reader) (io.Reader, error) {
		// One goroutine, which needs no Close, and the window that RFC 9659 allows.
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	},
}
