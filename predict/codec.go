package predict

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"
)

// Everything saved is an envelope: four letters that say what it is, the version of the format, the length of the
// content and its hash, then the content, little endian.

const (
	envelopeSize = 4 + 4 + 8 + 8
	// FormatVersion is the version of the saved form of models, windows and predictors that this package writes, and
	// the only one that it reads.
	FormatVersion = 1
)

// Errors of decoding.
var (
	// ErrFormat: the bytes are not what they should be: cut short, damaged or something else.
	ErrFormat = errors.New("predict: malformed data")
	// ErrVersion: the bytes come from another version of this package.
	ErrVersion = errors.New("predict: unknown format version")
)

// seal appends content to dst in an envelope.
func seal(dst []byte, kind string, content []byte) []byte {
	dst = append(dst, kind...)
	dst = binary.LittleEndian.AppendUint32(dst, FormatVersion)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(content)))
	dst = binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(content))
	return append(dst, content...)
}

// unseal returns the content of an envelope and what follows it.
func unseal(b []byte, kind string) (content, rest []byte, err error) {
	if len(b) < envelopeSize {
		return nil, nil, fmt.Errorf("%w: %d bytes are too few for a header", ErrFormat, len(b))
	}
	if got := string(b[:4]); got != kind {
		return nil, nil, fmt.Errorf("%w: starts with %q, want %q", ErrFormat, got, kind)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != FormatVersion {
		return nil, nil, fmt.Errorf("%w: %d, want %d", ErrVersion, v, FormatVersion)
	}
	size, hash := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	b = b[envelopeSize:]
	if uint64(len(b)) < size {
		return nil, nil, fmt.Errorf("%w: %d of %d bytes are there", ErrFormat, len(b), size)
	}
	content, rest = b[:size], b[size:]
	if xxhash.Sum64(content) != hash {
		return nil, nil, fmt.Errorf("%w: checksum does not match", ErrFormat)
	}
	return content, rest, nil
}

// An encoder appends values.
type encoder struct{ b []byte }

func (e *encoder) uint8(v uint8)   { e.b = append(e.b, v) }
func (e *encoder) uint64(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }
func (e *encoder) int(v int)       { e.uint64(uint64(int64(v))) }
func (e *encoder) float(v float64) { e.uint64(math.Float64bits(v)) }
func (e *encoder) float32(v float32) {
	e.b = binary.LittleEndian.AppendUint32(e.b, math.Float32bits(v))
}

func (e *encoder) bool(v bool) {
	if v {
		e.uint8(1)
	} else {
		e.uint8(0)
	}
}

func (e *encoder) floats(v []float64) {
	e.int(len(v))
	for _, f := range v {
		e.float(f)
	}
}

func (e *encoder) bytes(v []byte) {
	e.int(len(v))
	e.b = append(e.b, v...)
}

// A decoder takes values off a slice. After the first error it returns zeros.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
		d.b = nil
	}
}

func (d *decoder) take(n int) []byte {
	if n < 0 || len(d.b) < n {
		d.fail("ends early")
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) uint8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) float() float64 { return math.Float64frombits(d.uint64()) }
func (d *decoder) bool() bool     { return d.uint8() != 0 }

// number takes a float that has to be finite.
func (d *decoder) number(what string) float64 {
	v := d.float()
	if math.IsNaN(v) || math.IsInf(v, 0) {
		d.fail("%s is %v", what, v)
		return 0
	}
	return v
}

func (d *decoder) float32() float32 {
	if b := d.take(4); b != nil {
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	return 0
}

// int takes an integer from low to high.
func (d *decoder) int(what string, low, high int) int {
	v := int64(d.uint64())
	if v < int64(low) || v > int64(high) {
		d.fail("%s is %d, want %d to %d", what, v, low, high)
		return low
	}
	return int(v)
}

// count takes the length of a list whose elements have so many bytes, and refuses one that the data can't hold.
func (d *decoder) count(what string, size int) int {
	v := d.uint64()
	if d.err == nil && v > uint64(len(d.b)/size) {
		d.fail("%d %s do not fit", v, what)
		return 0
	}
	return int(v)
}

func (d *decoder) floats(what string) []float64 {
	v := make([]float64, d.count(what, 8))
	for i := range v {
		v[i] = d.number(what)
	}
	return v
}

func (d *decoder) bytes(what string) []byte { return d.take(d.count(what, 1)) }

// end reports the first error, or that something is left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes too many", len(d.b))
	}
	return d.err
}
