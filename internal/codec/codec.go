// Package codec is the saved form of models and predictors: an envelope with four letters for the
// kind, the version of the format, the length of the content and its hash, and then the content,
// all little-endian.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"
)

const (
	// HeaderSize is the length of an envelope without its content.
	HeaderSize = 4 + 4 + 8 + 8
	// Version is the format version that is written, and the only one that is read.
	Version = 1
)

// Errors of decoding.
var (
	// ErrFormat: the bytes are not what they should be: cut short, damaged or something else.
	ErrFormat = errors.New("endpick: malformed saved data")
	// ErrVersion: the bytes come from another version of the format.
	ErrVersion = errors.New("endpick: unknown format version")
)

// Seal appends content to dst in an envelope.
func Seal(dst []byte, kind string, content []byte) []byte {
	dst = append(dst, kind...)
	dst = binary.LittleEndian.AppendUint32(dst, Version)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(content)))
	dst = binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(content))
	return append(dst, content...)
}

// Unseal returns the content of an envelope and what follows it.
func Unseal(b []byte, kind string) (content, rest []byte, err error) {
	if len(b) < HeaderSize {
		return nil, nil, fmt.Errorf("%w: %d bytes are too few for a header", ErrFormat, len(b))
	}
	if got := string(b[:4]); got != kind {
		return nil, nil, fmt.Errorf("%w: starts with %q, want %q", ErrFormat, got, kind)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != Version {
		return nil, nil, fmt.Errorf("%w: %d, want %d", ErrVersion, v, Version)
	}
	size, hash := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	b = b[HeaderSize:]
	if uint64(len(b)) < size {
		return nil, nil, fmt.Errorf("%w: %d of %d bytes are there", ErrFormat, len(b), size)
	}
	content, rest = b[:size], b[size:]
	if xxhash.Sum64(content) != hash {
		return nil, nil, fmt.Errorf("%w: checksum does not match", ErrFormat)
	}
	return content, rest, nil
}

// An Encoder appends values.
type Encoder struct{ B []byte }

func (e *Encoder) Uint8(v uint8)   { e.B = append(e.B, v) }
func (e *Encoder) Uint64(v uint64) { e.B = binary.LittleEndian.AppendUint64(e.B, v) }
func (e *Encoder) Int(v int)       { e.Uint64(uint64(int64(v))) }
func (e *Encoder) Float(v float64) { e.Uint64(math.Float64bits(v)) }
func (e *Encoder) Float32(v float32) {
	e.B = binary.LittleEndian.AppendUint32(e.B, math.Float32bits(v))
}

func (e *Encoder) Bool(v bool) {
	if v {
		e.Uint8(1)
	} else {
		e.Uint8(0)
	}
}

func (e *Encoder) Floats(v []float64) {
	e.Int(len(v))
	for _, f := range v {
		e.Float(f)
	}
}

func (e *Encoder) Bytes(v []byte) {
	e.Int(len(v))
	e.B = append(e.B, v...)
}

// A Decoder decodes values. After the first error it returns zeros.
type Decoder struct {
	B   []byte
	Err error
}

func (d *Decoder) Fail(format string, args ...any) {
	if d.Err == nil {
		d.Err = fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
		d.B = nil
	}
}

func (d *Decoder) Take(n int) []byte {
	if n < 0 || len(d.B) < n {
		d.Fail("ends early")
		return nil
	}
	b := d.B[:n]
	d.B = d.B[n:]
	return b
}

func (d *Decoder) Uint8() uint8 {
	if b := d.Take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *Decoder) Uint64() uint64 {
	if b := d.Take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *Decoder) Float() float64 { return math.Float64frombits(d.Uint64()) }
func (d *Decoder) Bool() bool     { return d.Uint8() != 0 }

// Number reads a finite float.
func (d *Decoder) Number(what string) float64 {
	v := d.Float()
	if math.IsNaN(v) || math.IsInf(v, 0) {
		d.Fail("%s is %v", what, v)
		return 0
	}
	return v
}

func (d *Decoder) Float32() float32 {
	if b := d.Take(4); b != nil {
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	return 0
}

// Int reads an integer from low to high.
func (d *Decoder) Int(what string, low, high int) int {
	v := int64(d.Uint64())
	if v < int64(low) || v > int64(high) {
		d.Fail("%s is %d, want %d to %d", what, v, low, high)
		return low
	}
	return int(v)
}

// Count reads the length of a list whose elements have size bytes, and rejects one that can't
// fit into the data.
func (d *Decoder) Count(what string, size int) int {
	v := d.Uint64()
	if d.Err == nil && v > uint64(len(d.B)/size) {
		d.Fail("%d %s do not fit", v, what)
		return 0
	}
	return int(v)
}

func (d *Decoder) Floats(what string) []float64 {
	v := make([]float64, d.Count(what, 8))
	for i := range v {
		v[i] = d.Number(what)
	}
	return v
}

func (d *Decoder) Bytes(what string) []byte { return d.Take(d.Count(what, 1)) }

// End returns the first error, or an error if data is left.
func (d *Decoder) End() error {
	if d.Err == nil && len(d.B) > 0 {
		d.Fail("%d bytes too many", len(d.B))
	}
	return d.Err
}
