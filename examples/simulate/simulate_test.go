package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/sim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// simulate runs the program and returns what it printed.
func simulate(t testing.TB, args ...string) string {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(args, &stdout, &stderr), "%v: %s", args, &stderr)
	assert.Empty(t, stderr.String(), "no bar where there is no terminal")
	return stdout.String()
}

// small is a comparison of well under a second.
var small = []string{"-workload", "C", "-policies", "round-robin,lmetric", "-endpoints", "3", "-requests", "120"}

// written is the path of a new file.
func written(t *testing.T, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	return path
}

func golden(t *testing.T, name, got string) {
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o666))
	}
	assert.Equal(t, string(rig.Must(os.ReadFile(path))), got, "run the test with -update and look at the difference")
}

func TestTable(t *testing.T) {
	golden(t, "table.txt", simulate(t, append(small, "-rate", "1,3", "-slo", "tight:0.5:400:30")...))
}

// README's picture is what its command draws.
func TestPicture(t *testing.T) {
	if testing.Short() || rig.Race {
		t.Skip("takes ten seconds on two cores")
	}
	const picture = "docs/policies.svg"
	readme := string(rig.Must(os.ReadFile("../../README.md")))
	command := regexp.MustCompile(`go run ./examples/simulate (.*-plot) ` + picture).FindStringSubmatch(readme)
	require.NotNil(t, command)
	drawn := filepath.Join(t.TempDir(), "drawn.svg")
	simulate(t, append(strings.Fields(command[1]), drawn)...)
	golden(t, filepath.Join("../../..", picture), string(rig.Must(os.ReadFile(drawn))))
}

// A rate at which no request got a token has no place on an axis of logarithms.
func TestPictureWithoutTokens(t *testing.T) {
	var results []*result
	for rate, ttft := range []float64{0, 50, 200} {
		of := cell{sweep: new(sweep), policy: "p", rate: float64(rate)}
		results = append(results, &result{of, row{Rate: float64(rate), Report: &sim.Report{TTFT: sim.Summary{P95: ttft}}}})
	}
	drawn := overRates(results)
	assert.Equal(t, [][2]float64{{1, 0.05}, {2, 0.2}}, drawn[0].series[0].points)
	assert.Len(t, drawn[1].series[0].points, 3)
	assert.NotContains(t, drawn.svg(), "NaN")
}

// Several workloads, or loads by name, make one table with the policies one below the other.
func TestOverview(t *testing.T) {
	command := []string{"-workload", "C,B", "-load", "low,high", "-policies", "round-robin,predicted-latency,predicted-latency:most", "-requests", "60", "-seed", "1,2"}
	golden(t, "overview.txt", simulate(t, append(command, "-slo", "tight:0.5:400:30")...))
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(simulate(t, append(command, "-format", "json")...)), &rows))
	require.Len(t, rows, 2*3*2*2)
	assert.Equal(t, []any{"C", "low", 2.0}, []any{rows[0].Workload, rows[0].Load, rows[0].Rate})
	assert.Equal(t, []any{"B", "high"}, []any{rows[23].Workload, rows[23].Load})
}

func TestJSON(t *testing.T) {
	text := simulate(t, append(small, "-format", "json", "-rate", "2,3", "-seed", "7,8")...)
	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &rows))
	require.Len(t, rows, 2*2*2)
	for i, r := range rows {
		assert.Equal(t, []any{[]string{"round-robin", "lmetric"}[i/4], float64(2 + i/2%2), float64(7 + i%2)}, []any{r["policy"], r["rate"], r["seed"]})
		for _, field := range []string{"requests", "completed", "rejected", "throughput_rps", "output_tps", "prefix_hit_ratio", "preemptions", "jain", "imbalance"} {
			assert.IsType(t, 0.0, r[field], field)
		}
		for _, field := range []string{"ttft_ms", "tpot_ms", "e2e_ms"} {
			for _, statistic := range []string{"mean", "p50", "p90", "p95", "p99"} {
				assert.Positive(t, r[field].(map[string]any)[statistic], "%s.%s", field, statistic)
			}
		}
		assert.Contains(t, r, "slo_attainment")
		assert.Nil(t, r["slo_attainment"], "nobody asked for a latency: absent is not zero")
		assert.Equal(t, 120.0, r["completed"])
	}
}

func TestPredictions(t *testing.T) {
	command := []string{"-workload", "B", "-policies", "lmetric,predicted-latency", "-requests", "200", "-format", "json"}
	text := simulate(t, command...)
	assert.Equal(t, text, simulate(t, command...), "training does not depend on the machine")
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(text), &rows))
	assert.Nil(t, rows[0].Predictions, "lmetric predicts nothing")
	p := rows[1].Predictions
	require.NotNil(t, p)
	assert.Greater(t, p.Requests, 50)
	for _, latency := range []*prediction{p.TTFT, p.TPOT} {
		assert.Positive(t, latency.MAPE)
		assert.Less(t, latency.MAPE, 0.6)
		assert.Greater(t, latency.Covered, 0.5)
	}
}

// A mixed fleet, and a profile from a file.
func TestFleet(t *testing.T) {
	path := written(t, "mine.json", `{"name":"mine","step_us":2000,"weight_us":6600,"token_us":26.7,"sequence_us":15}`)
	text := simulate(t, "-workload", "B", "-policies", "lmetric", "-profile", path+":1,llama-3.1-8b-a100:2", "-requests", "50", "-format", "json")
	var rows []struct{ Endpoints []struct{ ID string } }
	require.NoError(t, json.Unmarshal([]byte(text), &rows))
	assert.Len(t, rows[0].Endpoints, 3)
}

func TestTrace(t *testing.T) {
	var lines strings.Builder
	for i := range 40 {
		line := rig.Must(json.Marshal(map[string]any{"timestamp": i * 500, "input_length": 1500, "output_length": 20, "hash_ids": []int{0, 1 + i%4, 10 + i}}))
		lines.Write(append(line, '\n'))
	}
	path := written(t, "trace.jsonl", lines.String())
	var rows []row
	text := simulate(t, "-trace", path, "-policies", "lmetric", "-endpoints", "2", "-rate-scale", "1,2", "-format", "json")
	require.NoError(t, json.Unmarshal([]byte(text), &rows))
	require.Len(t, rows, 2)
	assert.InDeltaSlice(t, []float64{2, 4, 2}, []float64{rows[0].Rate, rows[1].Rate, rows[1].RateScale}, 1e-9)
	require.NoError(t, json.Unmarshal([]byte(simulate(t, "-trace", path, "-policies", "lmetric", "-duration", "5s", "-rate-scale", "2", "-format", "json")), &rows))
	assert.Equal(t, 20, rows[0].Requests, "10 s of the trace take 5 s")
}

func TestCalibrate(t *testing.T) {
	// The fit recovers the profile that the simulator has used.
	path := written(t, "run.csv", recorded("llama-3.1-8b-a100"))
	out := filepath.Join(t.TempDir(), "fitted.json")
	var c calibration
	text := simulate(t, "calibrate", "-first-half", "-judge-second", "-format", "json", "-out", out, path)
	require.NoError(t, json.Unmarshal([]byte(text), &c))
	assert.Equal(t, 40, c.Fitted)
	assert.Equal(t, 40, c.Judged)
	assert.Greater(t, c.Before.E2E.MAPE, 0.2, "another GPU to begin with")
	assert.Less(t, c.After.TTFT.MAPE, 0.1)
	assert.Less(t, c.After.ITL.MAPE, 0.02)
	assert.Less(t, c.After.E2E.MAPE, 0.02)
	assert.Greater(t, c.After.E2E.Pearson, 0.999)
	assert.Equal(t, c.Profile, rig.Must(readProfile(out)))
	assert.Contains(t, simulate(t, "calibrate", path), "TTFT fitted")
	whole := written(t, "run.jsonl", `{"time":"2026-01-01T00:00:00Z","e2e_ms":500,"status":"completed","attempts":1,"input_tokens":100,"output_tokens":20}`)
	assert.NotContains(t, simulate(t, "calibrate", whole), "TTFT", "nothing has streamed")
}

// Conditions follow a policy's name, and each changes what it says.
func TestConditions(t *testing.T) {
	rest, c, err := conditionsOf("lmetric+events+routers=4+share=index+delay=0s+late=1s+lost=0.01+reports=50ms")
	require.NoError(t, err)
	assert.Equal(t, "lmetric+events", rest)
	assert.Equal(t, conditions{reports: 50 * time.Millisecond, routers: 4, share: "index", late: time.Second, lost: 0.01}, c)
	for _, bad := range []string{
		"a+reports=0s", "a+reports=5", "a+routers=0", "a+routers=x", "a+share=all", "a+share", "a+delay=-1s", "a+delay=1s", "a+late=1s",
		"a+lost=0.1", "a+delay=1", "a+late=2h", "a+lost=1", "a+lost=x",
	} {
		_, _, err := conditionsOf(bad)
		assert.ErrorContains(t, err, "a: +", bad)
	}
	assert.Error(t, rig.Err(newPolicy("marginal-delay+nothing=1")))
	seen := map[string]string{}
	for _, policy := range []string{
		"lmetric+reports=2s", "lmetric+routers=3", "lmetric+routers=3+share=load", "lmetric+routers=3+share=index+delay=700ms",
		"lmetric+events+routers=3", "lmetric+events+routers=3+late=3s", "lmetric+events+routers=3+lost=0.01",
	} {
		page := simulate(t, "-workload", "C", "-rate", "5", "-endpoints", "3", "-requests", "150", "-format", "json", "-policies", policy)
		page = strings.Replace(page, strconv.Quote(policy), `""`, 1)
		assert.Empty(t, seen[page], policy)
		seen[page] = policy
	}
}

// A verb with heavy servers is a program of the repository's, with a status of its own.
func TestBuilt(t *testing.T) {
	t.Chdir(t.TempDir())
	var stderr bytes.Buffer
	assert.Equal(t, 2, run([]string{"soak"}, &bytes.Buffer{}, &stderr))
	assert.Contains(t, stderr.String(), "simulate soak is built from the repository: run it there")
}

func TestMistakes(t *testing.T) {
	good := written(t, "good.jsonl", `{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[0]}`)
	broken := written(t, "broken.jsonl", `{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[0]}`+"\n"+`{"timestamp":-1,"input_length":10,"output_length":1}`)
	z := rig.Must(gzip.NewReader(bytes.NewReader(shipped)))
	few := written(t, "few.csv", strings.Join(strings.SplitAfter(string(rig.Must(io.ReadAll(z))), "\n")[:901], ""))
	for _, c := range []struct{ args, want string }{
		{"", "one of -workload and -trace is needed"},
		{"-workload A -trace " + good, "and not both"},
		{"-workload E", `for flag -workload: sim: Scenario "E" is unknown (known: A, B, C, D,`},
		{"-workload A,B -rate 3", "several have their own rates, use -load"},
		{"-workload A,B -plot p.svg", "-plot is for one workload"},
		{"-workload A -load full", `"full" is not a load (known: low, middle, high)`},
		{"-workload A -load low -rate 3", "-load is for -workload, without -rate"},
		{"-workload A -policies predicted-latency:fast", `has "fast", which is not a variant; there are most, paper, synchronous`},
		{"-workload A -policies predicted-latency:most:most", `has "most" twice`},
		{"-workload A -policies best", `policy "best" is unknown; there are aibrix,`},
		{"-workload A -policies linear:2", `policy "linear:2" has parameter "2", which is not a weight in (0, 1]`},
		{"-workload A -policies lmetric,lmetric", "lmetric is given twice"},
		{"-workload A -profile abacus", `-profile: engine: unknown profile "abacus" (known: `},
		{"-workload A -profile llama-3.1-8b-h100:2 ", "a single one without a number (see -endpoints)"},
		{"-workload A -profile llama-3.1-8b-h100:2,llama-3.1-8b-a100:0", `"0" is not a number of servers`},
		{"-workload A -profile llama-3.1-8b-h100:2,llama-3.1-8b-a100:1 -endpoints 3", "can't both be given"},
		{"-workload A -profile " + written(t, "p.json", `{"name":"x","step":1}`), `unknown field "step"`},
		{"-workload A -profile " + written(t, "q.json", `{"name":"x"}`), "a step takes no time"},
		{"-workload A -rate 0", `"0" is not a number above 0`},
		{"-workload A -rate 1 -rate-scale 2", "-rate and -rate-scale can't both be given"},
		{"-workload A -rate-scale 2", "no arrivals of its own to scale"},
		{"-trace " + good + " -rate 2", "a trace has its own times, use -rate-scale"},
		{"-trace " + broken, "sim: broken.jsonl:2: ArrivalMillis -1 is not within"},
		{"-trace " + filepath.Join(t.TempDir(), "none"), "no such file"},
		{"-workload A -requests 10 -duration 1s", "-requests and -duration can't both be given"},
		{"-workload A -requests -1", "-requests -1 is too small"},
		{"-workload A -endpoints 0", "-endpoints 0 is too small"},
		{"-workload A -seed -1", `"-1" is not a whole number`},
		{"-workload A -format xml", `-format "xml" is unknown (known: table, overview, json)`},
		{"-workload A -slo tight:0.3", "is not name:share:ttft_ms:tpot_ms"},
		{"-workload A -slo tight:x:1:1", `class tight: share "x"`},
		{"-workload A -slo tight:0.6:1:1,loose:0.6:2:2", "the shares add up to 1.2"},
		{"-workload A -slo tight:0.6:0:0", "class tight has no target"},
		{"-workload A lmetric", `what is "lmetric"? There are flags, and the verbs against, calibrate, evaluate,`},
		{"-nonsense", "flag provided but not defined: -nonsense"},
		{"against -routers best", `"best" is not a router (known: endpick, round-robin,`},
		{"against -duration 0s", "-duration 0s is not above zero"},
		{"calibrate", "needs one FILE"},
		{"calibrate " + good, "has no time of the last token"},
		{"calibrate -judge-second " + good, "-judge-second needs -first-half"},
		{"calibrate -endpoint x " + good, `-endpoint "x" is not in good.jsonl`},
		{"calibrate " + broken, "broken.jsonl:2: ArrivalMillis"},
		{"evaluate -format xml", `-format is "xml", want table or json`},
		{"evaluate more", `"more" is one argument too many`},
		{"evaluate -csv " + few, few + ": 900 rows are too few, the first 1000 only train"},
		{"evaluate -forget nowhere", `the samples: no row has the regime "nowhere"`},
		{"evaluate -csv " + few + "x", "no such file"},
		{"tournament -contests E", `"E" is not a contest (known: tuned, held, foreign, programs, sealed, A-qwe,`},
		{"tournament -contests A-qwe,A", `"A" is not a contest`},
		{"tournament -policies best", "is unknown"},
		{"tournament -load 0", "is not a number above 0"},
		{"tournament -requests 3", "-requests 3 is too small"},
		{"tournament -format xml", `-format "xml" is unknown (known: table, cells, json)`},
		{"tournament -plot front.svg -format json", "-plot is not for -format json"},
		{"tournament more", `what is "more"?`},
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, 2, run(strings.Fields(c.args), &stdout, &stderr), c.args)
		assert.Contains(t, stderr.String(), c.want, c.args)
		assert.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line: %q", stderr.String())
		assert.Empty(t, stdout.String(), c.args)
	}
}

func TestHelp(t *testing.T) {
	for _, verb := range [][]string{{"-h"}, {"tournament", "-h"}, {"calibrate", "-h"}} {
		var stderr bytes.Buffer
		assert.Zero(t, run(verb, io.Discard, &stderr))
		assert.Contains(t, stderr.String(), "Flags:")
	}
}

// The docs' commands are valid, and with ENDPICK_LONG, which takes ten minutes, print what is below
// them. An oracle finds more on a faster machine. What replays a trace needs it beside the repository.
func TestDocs(t *testing.T) {
	t.Chdir("../..")
	_, missing := os.Stat("../shared/traces")
	block := regexp.MustCompile("(?s)\n\\$ go run ./examples/simulate ([^\n]*)\n(.*?)```")
	commands := 0
	for _, page := range rig.Must(filepath.Glob("docs/*.md")) {
		text := string(rig.Must(os.ReadFile(page)))
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			commands++
			args := strings.Fields(m[1])
			if args[0][0] == '-' {
				if _, err := readOptions(args, &bytes.Buffer{}); !os.IsNotExist(err) {
					assert.NoError(t, err, "%s: %s", page, m[1])
				}
			}
			if os.Getenv("ENDPICK_LONG") == "" || missing != nil || args[0] == "oracle" || args[0] == "against" {
				continue
			}
			got := regexp.MustCompile("(?m) +$").ReplaceAllString(simulate(t, args...), "")
			if *update {
				text = strings.Replace(text, m[2], got, 1)
				require.NoError(t, os.WriteFile(page, []byte(text), 0o666))
				continue
			}
			assert.Equal(t, m[2], got, "%s: run with -update", page)
		}
	}
	require.Greater(t, commands, 4)
}

// recorded is what a server with this profile does with some requests, in the format of LLMServingSim's recordings.
func recorded(profile string) string {
	p := rig.Must(engine.ProfileByName(profile))
	var records []sim.Record
	for i := range 80 {
		records = append(records, sim.Record{
			ArrivalMillis: float64(i*150 + i*i%7*40), InputTokens: 100 + i*i%13*180, OutputTokens: 20 + i*i%11*12,
		})
	}
	done := rig.Must(sim.Replay(records, sim.Deployment{Engine: engine.Config{Profile: p}}))
	var b strings.Builder
	b.WriteString("input_tokens,output_tokens,queued_s,scheduled_s,first_token_s,last_token_s\n")
	for _, r := range done {
		fmt.Fprintf(&b, "%d,%d,%g,%g,%g,%g\n", r.InputTokens, r.OutputTokens, r.ArrivalMillis/1000, r.ArrivalMillis/1000, r.FirstTokenMillis/1000, r.LastTokenMillis/1000)
	}
	return b.String()
}

const header = "t_s,kv_usage_pct,input_tokens,queue_depth,running_requests,prefix_match_pct,inflight_prefill_tokens,ttft_ms,tpot_ms"

func TestParseErrorsNameLineAndColumn(t *testing.T) {
	for _, c := range []struct{ name, csv, want string }{
		{"empty", "", "line 1: no header"},
		{"column missing", "t_s,kv_usage_pct\n1,2\n", `line 1: no column "input_tokens"`},
		{"not a number", header + "\n0,1,2,3,4,5,6,7,8\n0,1,2,3,4,5,6,x7,8\n", `line 3: column "ttft_ms": "x7" is not a number`},
		{"no time", header + "\n,1,2,3,4,5,6,7,8\n", `line 2: column "t_s": "" is not a time in seconds`},
		{"too few fields", header + "\n1,2\n", "record on line 2: wrong number of fields"},
	} {
		require.EqualError(t, rig.Err(parseSamples(strings.NewReader(c.csv))), c.want, c.name)
	}
}

func TestColumnsAreFoundByName(t *testing.T) {
	s, err := parseSamples(strings.NewReader("tpot_ms,regime,ttft_ms,inflight_prefill_tokens,prefix_match_pct,running_requests,queue_depth,input_tokens,kv_usage_pct,t_s,other\n" +
		"8,night,7,600,25,4,3,200,50,1.5,z\n,night,7,600,25,4,3,200,50,1.5,z\n"))
	require.NoError(t, err)
	require.Len(t, s, 2)
	require.Equal(t, []any{"night", 7.0, 8.0}, []any{s[0].regime, s[0].TTFT, s[0].TPOT})
	require.True(t, math.IsNaN(s[1].TPOT), "an empty cell is absent, not zero")
	require.Equal(t, 50, s[0].Candidate.PrefixTokens, "25 % of 200 tokens")
	require.Equal(t, 600, s[0].Candidate.InFlight.PrefillTokens)
	require.EqualValues(t, 1.5e9, s[0].At.UnixNano())
}

// The gateway beside a round-robin, with a server killed and started again.
func TestAgainst(t *testing.T) {
	t.Parallel()
	plot := filepath.Join(t.TempDir(), "against.svg")
	args := []string{"against", "-routers", "endpick,round-robin", "-workload", "chat", "-seed", "1", "-duration", "2s", "-kill"}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(append(args, "-format", "json", "-plot", plot), &stdout, &stderr), stderr.String())
	var rows []*againstRow
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &rows))
	require.Len(t, rows, 2)
	for i, name := range []string{"endpick", "round-robin"} {
		assert.Equal(t, name, rows[i].Router)
		require.Len(t, rows[i].Seeds, 1)
		assert.Greater(t, rows[i].Seeds[0].Requests, 5)
	}
	ours, theirs := rows[0].Seeds[0], rows[1].Seeds[0]
	assert.Greater(t, *ours.PrefixHitRatio, *theirs.PrefixHitRatio+0.1)
	assert.LessOrEqual(t, ours.Failed, 2)
	assert.Contains(t, string(rig.Must(os.ReadFile(plot))), ">round-robin</text>")

	var table strings.Builder
	require.NoError(t, writeAgainst(&table, rows))
	assert.Regexp(t, `(?m)^ +endpick +\d+ +\d+ +0.\d\d +\d$`, table.String())
}

// The samples that are shipped are predicted as docs/results.md says.
func TestEvaluate(t *testing.T) {
	for name, args := range map[string][]string{
		"table.txt":   nil,
		"report.json": {"-forget", "rag_high_kv", "-format", "json"},
		"delay.json":  {"-delay", "-format", "json"},
	} {
		golden(t, filepath.Join("evaluate", name), simulate(t, append([]string{"evaluate"}, args...)...))
	}
	page := string(rig.Must(os.ReadFile("../../docs/results.md")))
	assert.Contains(t, page, "$ go run ./examples/simulate evaluate\n"+string(rig.Must(os.ReadFile("testdata/evaluate/table.txt")))+"```\n")
	assert.Contains(t, simulate(t, "evaluate", "-forget", "rag_high_kv"), "\nforgetting: MAPE ")
}

// The accuracy that the predictor must reach on the shared samples. It holds for other engines too;
// these figures were measured to be attainable here.
func TestAccuracyOnTheSharedSamples(t *testing.T) {
	if testing.Short() || rig.Race {
		t.Skip("goes through 60,000 rows, in one goroutine")
	}
	const path = "../../../shared/bench/latency_samples.csv.gz"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no %s beside the repository", "../shared/bench/latency_samples.csv.gz")
	}
	var r accuracyReport
	require.NoError(t, json.Unmarshal([]byte(simulate(t, "evaluate", "-csv", path, "-forget", "saturation", "-format", "json")), &r))
	errors := [][2]float64{{r.TTFT.MAPE, 4.8}, {r.TTFT.P90, 8.8}, {r.TPOT.MAPE, 3.2}, {r.TPOT.P90, 6.3}, {r.Forgetting.TTFT, 6}, {r.Forgetting.TPOT, 5}}
	for _, e := range errors {
		require.LessOrEqual(t, e[0], e[1], "%+v", r)
	}
	require.InDeltaSlice(t, []float64{90, 90}, []float64{r.Coverage.TTFT, r.Coverage.TPOT}, 2)
	require.GreaterOrEqual(t, min(r.Coverage.WorstRegime, r.Coverage.WorstBlock), 80.0)
}
