package slo

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
)

// The headers in which clients give latency targets, in milliseconds.
const (
	TTFTHeader = "X-Slo-Ttft-Ms" // time to first token
	TPOTHeader = "X-Slo-Tpot-Ms" // time per output token after the first
)

// llmdHeaders are llm-d's names for them.
var llmdHeaders = map[string]string{
	TTFTHeader: "X-Llm-D-Slo-Ttft-Ms",
	TPOTHeader: "X-Llm-D-Slo-Tpot-Ms",
}

// MinTarget and MaxTarget are the shortest and the longest latency that a header
// may ask for. Anything else is considered a mistake, such as a value in
// seconds.
const (
	MinTarget = time.Millisecond
	MaxTarget = time.Hour
)

// HeaderError says which header could not be read, and why. The target that it
// should have set is not set.
type HeaderError struct {
	Header string
	Value  string
	Reason string
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("slo: header %s: %.40q %s", e.Header, e.Value, e.Reason)
}

// FromHeader reads the latency targets of a request from [TTFTHeader] and
// [TPOTHeader], or where one is absent from llm-d's x-llm-d-slo-ttft-ms and
// x-llm-d-slo-tpot-ms: a decimal number of milliseconds within [MinTarget] and
// [MaxTarget]. An absent header sets no target. Neither does a malformed one,
// which the error names: a [HeaderError], or two joined. The other header still
// counts, so use the SLO even if the error is not nil. A header that is given
// twice is malformed.
func FromHeader(h http.Header) (endpick.SLO, error) {
	ttft, err1 := target(h, TTFTHeader)
	tpot, err2 := target(h, TPOTHeader)
	slo := endpick.SLO{TTFT: ttft, TPOT: tpot}
	switch {
	case err1 == nil:
		return slo, err2
	case err2 == nil:
		return slo, err1
	}
	return slo, errors.Join(err1, err2)
}

func target(h http.Header, name string) (time.Duration, error) {
	values := h[name]
	if len(values) == 0 {
		name = llmdHeaders[name]
		values = h[name]
	}
	if len(values) == 0 {
		return 0, nil
	}
	fail := func(reason string) (time.Duration, error) {
		return 0, &HeaderError{Header: name, Value: strings.Join(values, ", "), Reason: reason}
	}
	if len(values) > 1 {
		return fail("is given more than once")
	}
	v := strings.TrimSpace(values[0])
	// ParseFloat also accepts hexadecimal digits, underscores, Inf and NaN.
	if v == "" || strings.Trim(v, "0123456789.eE+-") != "" {
		return fail("is not a decimal number")
	}
	ms, err := strconv.ParseFloat(v, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && ms > float64(MaxTarget/time.Millisecond):
		return fail("is more than an hour")
	case err != nil:
		return fail("is not a decimal number")
	case !(ms >= float64(MinTarget/time.Millisecond)):
		return fail("is less than a millisecond")
	}
	return time.Duration(ms * float64(time.Millisecond)), nil
}
