package traffic

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// WriteJSON writes one array with an object for each policy.
func WriteJSON(w io.Writer, results []Result) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(results)
}

// WriteTable writes a row for each policy; times are in milliseconds.
func WriteTable(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	above, head := "", ""
	asked := slices.ContainsFunc(results, func(r Result) bool { return r.SLOMet != nil })
	if asked {
		above, head = "SLO\t", "met\t"
	}
	fmt.Fprintln(t, "\t\t\tTTFT ms\t\tTPOT ms\t\tE2E ms\t\tprefix hits\t\t"+above)
	fmt.Fprintln(t, "policy\trequests\tfailed\tp50\tp95\tp50\tp95\tp50\tp95\tall\tlater turns\t"+head)
	for _, r := range results {
		met := ""
		if asked {
			met = ratio(r.SLOMet) + "\t"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s%s%s%s\t%s\t%s\n", r.Policy, r.Requests, r.Failed,
			cells(r.TTFT), cells(r.TPOT), cells(r.E2E), ratio(r.PrefixHitRatio), ratio(r.LaterHitRatio), met)
	}
	return t.Flush()
}

func cells(p *Percentiles) string {
	if p == nil {
		return "-\t-\t"
	}
	return fmt.Sprintf("%.1f\t%.1f\t", p.P50, p.P95)
}

func ratio(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v)
}

// Progress shows on a terminal how many are done, and nothing once all are.
func Progress(w io.Writer, done, of int, what string) {
	f, _ := w.(*os.File)
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	line := "\x1b[2K\r"
	if done < of {
		line += fmt.Sprintf("%d of %d %s", done, of, what)
	}
	_, _ = io.WriteString(f, line)
}
