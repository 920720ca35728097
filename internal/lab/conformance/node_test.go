package conformance

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nodeEnv names a directory in which npm ci has been run.
const nodeEnv = "ENDPICK_NODE_MODULES"

// nodeClients are the scripts of node/ and the APIs that each speaks.
var nodeClients = []struct {
	script, client string
	apis           []string
}{
	{"openai.mjs", "openai", []string{"chat", "responses", "completions", "models"}},
	{"anthropic.mjs", "@anthropic-ai/sdk", []string{"messages", "models"}},
	{"ai.mjs", "ai", []string{"chat", "responses", "messages"}},
	{"agents.mjs", "@openai/agents", []string{"chat", "responses"}},
	{"ollama.mjs", "ollama", []string{"Ollama", "models"}},
}

// nodeDir is a directory from which the scripts can be run, or the reason why
// there is none.
func nodeDir(t *testing.T) (dir, why string) {
	if _, err := exec.LookPath("node"); err != nil {
		return "", "there is no node"
	}
	installed := os.Getenv(nodeEnv)
	if installed == "" {
		return "", nodeEnv + " is not set"
	}
	modules, err := filepath.Abs(filepath.Join(installed, "node_modules"))
	require.NoError(t, err)
	require.DirExists(t, modules, "%s: npm ci was not run there", nodeEnv)
	dir = t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("node")))
	require.NoError(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	return dir, ""
}

// nodeRun is one task for a script.
type nodeRun struct {
	API      string `json:"api"`
	Scenario string `json:"scenario"`
	URL      string `json:"url"`
}

// runNode runs all scenarios of a script on targets of one kind. Scenarios
// unknown to the script are missing from its output.
func (f *fleet) runNode(t *testing.T, dir, script string, list []nodeRun) map[nodeRun]string {
	var errorQuestions []string
	for _, status := range statuses {
		errorQuestions = append(errorQuestions, askForError(status))
	}
	limit := map[bool]any{true: maxTokens, false: nil}[f.one]
	input, err := json.Marshal(map[string]any{"runs": list, "prompts": map[string]any{
		"model": model, "question": question, "second": second, "askForCall": askForCall, "askForRetry": askForRetry,
		"askForCut": askForCut, "askForErrors": errorQuestions, "result": result,
		"maxTokens": maxTokens, "limit": limit, "longest": longest, "heard": heard,
	}})
	assert.NoError(t, err)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "node", "--no-warnings", script)
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, bytes.NewReader(input), &stderr
	output, err := cmd.Output()
	assert.NoError(t, err, "%s: %s", script, &stderr)
	told := map[nodeRun]string{}
	for line := range bytes.Lines(output) {
		var one struct {
			nodeRun
			Told string `json:"told"`
		}
		assert.NoError(t, json.Unmarshal(line, &one), "%s: %s", script, line)
		told[nodeRun{API: one.API, Scenario: one.Scenario}] = one.Told
	}
	return told
}

// runNodeClient runs a script on all targets.
func (f *fleet) runNodeClient(t *testing.T, dir, script, client string, apis []string) (all []outcome) {
	told := make([]map[nodeRun]string, len(f.targets))
	targets := make([]map[nodeRun]*target, len(f.targets))
	var processes []func()
	for k, fresh := range f.targets {
		targets[k] = map[nodeRun]*target{}
		var list []nodeRun
		for _, api := range apis {
			for _, s := range scenarios {
				if f.has(s) {
					p := fresh(t)
					targets[k][nodeRun{API: api, Scenario: s.name}] = p
					list = append(list, nodeRun{api, s.name, p.url})
				}
			}
		}
		processes = append(processes, func() { told[k] = f.runNode(t, dir, script, list) })
	}
	f.together(processes...)
	for _, api := range apis {
		for _, s := range scenarios {
			one := nodeRun{API: api, Scenario: s.name}
			if told[0][one] == "" {
				continue
			}
			var runs []run
			for k := range f.targets {
				runs = append(runs, run{told[k][one], targets[k][one].settled(t)})
			}
			all = append(all, f.compare(t, client, api, s, runs))
		}
	}
	return all
}
