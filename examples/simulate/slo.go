package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/sim"
)

// readClasses parses SLO classes: name:share:ttft_ms:tpot_ms, separated by
// commas. A target of 0 is none; the remaining share has no targets.
func readClasses(s string) ([]sim.MixClass, error) {
	var classes []sim.MixClass
	seen := map[string]bool{}
	sum := 0.0
	for text := range strings.SplitSeq(s, ",") {
		fields := strings.Split(strings.TrimSpace(text), ":")
		if len(fields) != 4 || fields[0] == "" {
			return nil, fmt.Errorf("%q is not name:share:ttft_ms:tpot_ms", text)
		}
		var numbers [3]float64
		for i, what := range []string{"share", "ttft_ms", "tpot_ms"} {
			x, err := strconv.ParseFloat(fields[1+i], 64)
			if err != nil || !(x >= 0 && x <= maxTargetMillis) {
				return nil, fmt.Errorf("class %s: %s %q is not a number of at least 0", fields[0], what, fields[1+i])
			}
			numbers[i] = x
		}
		switch {
		case numbers[0] == 0:
			return nil, fmt.Errorf("class %s: its share is 0", fields[0])
		case numbers[1] == 0 && numbers[2] == 0:
			return nil, fmt.Errorf("class %s has no target: leave it out, what is left of the shares asks for nothing", fields[0])
		case seen[fields[0]]:
			return nil, fmt.Errorf("class %s is given twice", fields[0])
		}
		seen[fields[0]] = true
		sum += numbers[0]
		classes = append(classes, sim.MixClass{
			Name: fields[0], Share: numbers[0], SLO: endpick.SLO{TTFT: millis(numbers[1]), TPOT: millis(numbers[2])},
		})
	}
	if sum > 1+1e-9 {
		return nil, fmt.Errorf("the shares add up to %v", sum)
	}
	if rest := 1 - sum; rest > 1e-9 {
		classes = append(classes, sim.MixClass{Share: rest})
	}
	return classes, nil
}

const maxTargetMillis = 366 * 24 * 3600 * 1000

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
