package whole

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of docs/faults.md")

// page contains the tables, after this line.
const (
	page = "../../../docs/faults.md"
	mark = "<!-- go test -run Faults ./internal/lab/whole -update -->\n"
)

// row is a fault and what is observed.
type row struct {
	name  string
	cells []string
}

// part is a table.
type part struct {
	title, columns string
	about          string
	least          int // minimum number of rows
	rows           func(t *testing.T) []row
}

// Whatever the fault, client and accounts see what docs/faults.md says.
func TestFaults(t *testing.T) {
	parts := []part{
		{"Servers", "the server … | a client sees | leases | beside a good server it sees | leases",
			"Each server is one of `transporttest.Faults`. *Leases* lists how they ended, in order.", 85, serverFaults},
		{"Clients", "the client … | it sees | leases", "Bodies of 16 KiB, in shapes that are meant to cost a gateway more than their length suggests, and exchanges of `internal/lab/suite`.", 64, clientInputs},
		{"Clients, byte by byte", "the client … | it sees | leases", "Over HTTP/1.1. Some are refused by `net/http` before the gateway hears of them.", 20, wires},
		{"Clients over HTTP/2", "the client … | it sees | leases", "In the clear, frame by frame.", 15, http2Clients},
		{"HTTP/2", "the server … | a client sees | leases", "In the clear, frame by frame. One is left out: a server that opens a stream's window beyond 2³¹ bytes hangs, because `net/http` of Go 1.26 deadlocks.", 12, http2Faults},
		{"TLS", "the server … | a client sees | leases", "", 10, tlsFaults},
		{"Half-open connections", "the server … | a client sees | leases", "`FirstByteTimeout`, `StallTimeout` and `ResponseTimeout` are very short here.", 6, halfOpen},
		{"DNS and discovery", "the list of servers … | who asks is told | endpoints | a client sees", "Package `discover` over DNS and over a list.", 8, lyingNames},
		{"Clocks", "the router's clock … | a client sees | leases", "", 6, jumpingClocks},
		{"Full disks", "what is written … | a client sees | what tells", "", 3, fullDisks},
	}
	before := runtime.NumGoroutine()
	tables := make([]string, len(parts))
	for i, p := range parts {
		t.Run(p.title, func(t *testing.T) {
			rows := p.rows(t)
			assert.GreaterOrEqual(t, len(rows), p.least)
			tables[i] = p.markdown(rows)
		})
	}
	assert.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, patience, 10*time.Millisecond, "goroutines stay")
	if t.Failed() || slices.Contains(tables, "") { // not all were selected
		return
	}
	head, old, ok := strings.Cut(string(rig.Must(os.ReadFile(page))), mark)
	require.True(t, ok, "%s has no place for the tables", page)
	all := "\n" + strings.Join(tables, "\n")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(head+mark+all), 0o644))
		return
	}
	assert.Equal(t, old, all, "run with -update")
}

// shorter is what the page says instead: numbers differ from body to body, and the page
// says once what the gateway's own errors are.
var shorter = []struct {
	long *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`more than \d+ (.*) in \d+ bytes`), "more than n $1 in so many bytes"},
	{regexp.MustCompile(`502 “the model server failed before it answered”`), "502"},
	{regexp.MustCompile(`503 “no server is available”`), "503"},
	{regexp.MustCompile(`504 “the model server did not answer in time”`), "504"},
}

// markdown has a line for each outcome, with the faults that lead to it.
func (p *part) markdown(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", p.title)
	if p.about != "" {
		fmt.Fprintf(&b, "%s\n\n", p.about)
	}
	fmt.Fprintf(&b, "| %s |\n|%s\n", p.columns, strings.Repeat("---|", strings.Count(p.columns, "|")+1))
	names := map[string][]string{}
	var outcomes []string
	for _, r := range rows {
		outcome := strings.Join(r.cells, " | ")
		for _, s := range shorter {
			outcome = s.long.ReplaceAllString(outcome, s.by)
		}
		if code, ok := strings.CutPrefix(r.name, "answers "); ok {
			outcome = strings.ReplaceAll(outcome, code+" “no”", "the server's answer")
		}
		if names[outcome] == nil {
			outcomes = append(outcomes, outcome)
		}
		names[outcome] = append(names[outcome], r.name)
	}
	for _, outcome := range outcomes {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(names[outcome], "; "), outcome)
	}
	return b.String()
}

// fault is the first cell of a row, and what it takes to observe the others.
type fault[T any] struct {
	name string
	of   T
}

// each makes the rows of faults concurrently.
func each[T any](t *testing.T, faults []fault[T], f func(t *testing.T, name string, of T) []string) []row {
	rows := make([]row, len(faults))
	t.Run("each", func(t *testing.T) {
		for i, one := range faults {
			t.Run(one.name, func(t *testing.T) {
				t.Parallel()
				rows[i] = row{one.name, f(t, one.name, one.of)}
			})
		}
	})
	return rows
}
