// Growth measures how the time of a decision, and the memory of a router, grow with
// endpoints, tokens, holders of a prefix, blocks in the index, and adapters.
//
//	go run ./examples/growth -out docs/performance
//
// Times are in S, the time that xxhash.Sum64 takes for 64 KiB at the same moment, because
// ratios carry over to other machines. It takes some minutes, one core and 4 GB.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "growth:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	dir := flags.String("out", "", "write the plots, as SVG, into this `directory`")
	format := flags.String("format", "table", "table or json")
	rounds := flags.Int("rounds", 30, "measure everything so many `times`, and take the least")
	most := flags.Int("most", 0, "leave out what is larger than this `number` of endpoints, blocks, adapters or 1024 tokens; 0: nothing")
	only := flags.String("only", "", "measure one `group`: endpoints, matches, tokens, index, adapters or cores")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir != "" { // before measuring for minutes
		if err := os.MkdirAll(*dir, 0o750); err != nil {
			return err
		}
	}
	p := fullPlan(*rounds)
	p.only = *only
	switch {
	case *only != "" && !slices.ContainsFunc(p.groups(), func(g curveGroup) bool { return g.name == *only }):
		return fmt.Errorf("-only is %q, which is not a group", *only)
	case *format != "table" && *format != "json":
		return fmt.Errorf("-format is %q, want table or json", *format)
	case *rounds < 1:
		return fmt.Errorf("-rounds is %d, want 1 or more", *rounds)
	case flags.NArg() > 0:
		return fmt.Errorf("%q is one argument too many", flags.Arg(0))
	}
	if *most > 0 {
		p.endpoints, p.blocks, p.adapters = upTo(p.endpoints, *most), upTo(p.blocks, *most), upTo(p.adapters, *most)
		p.tokens = upTo(p.tokens, *most*1024)
	}
	curves, err := p.run(func(name string) { fmt.Fprintln(progress, "measured:", name) })
	if err != nil {
		return err
	}
	if *dir != "" {
		for i := range curves {
			if err := curves[i].draw(filepath.Join(*dir, curves[i].Name+".svg")); err != nil {
				return err
			}
		}
	}
	if *format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(curves)
	}
	for i := range curves {
		if _, err := io.WriteString(out, curves[i].table()+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// upTo returns the values up to most, and at least the first.
func upTo(values []int, most int) []int {
	n := 1
	for n < len(values) && values[n] <= most {
		n++
	}
	return values[:n]
}

// table is the curve in Markdown, with the exponent between the last two points.
func (c *curve) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s, by %s |", c.Y, c.X)
	for _, p := range c.Series[0].Points {
		fmt.Fprintf(&b, " %s |", thousands(int(p.X)))
	}
	b.WriteString(" grows as |\n|---|")
	b.WriteString(strings.Repeat("---|", len(c.Series[0].Points)+1) + "\n")
	for i := range c.Series {
		s := &c.Series[i]
		fmt.Fprintf(&b, "| %s |", s.Name)
		for _, p := range s.Points {
			fmt.Fprintf(&b, " %.3g |", p.Y)
		}
		fmt.Fprintf(&b, " x^%.2f |\n", s.exponent())
	}
	return b.String()
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
