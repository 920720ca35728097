package main

import (
	"bytes"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every flag of a gateway that serves changes the setting that it stands for, and no other; what
// settings do is tested by TestEverySetting.
func TestEveryFlagIsASetting(t *testing.T) {
	const serving = "-listen 127.0.0.1:0 -seed 7 "
	values := func(args string) map[string]string {
		o, err := parseOptions(strings.Fields(serving+args), nil)
		require.NoError(t, err, args)
		all := map[string]string{}
		valuesIn(reflect.ValueOf(o.settings).Elem(), "", all)
		return all
	}
	flags := map[string]struct{ value, setting, want string }{
		"listen":        {"127.0.0.1:3", "listen", `"127.0.0.1:3"`},
		"admin":         {"127.0.0.1:3", "admin", `"127.0.0.1:3"`},
		"trust-headers": {"", "trust_headers", "true"},
		"record":        {"r", "record.file", `"r"`},
		"backend":       {"http://a -backend http://b", "endpoints[].url", `"http://a"` + "\n" + `"http://b"`},
		"backend-file":  {"list", "discover.file", `"list"`},
		"policy":        {"lmetric", "policy", `"lmetric"`},
		"grace":         {"3ms", "timeouts.grace", "3000000"},
		"queue":         {"3", "queue.requests", "3"},
		"queue-timeout": {"3ms -queue 1", "queue.timeout", "3000000"},
		"seed":          {"3", "seed", "0x3"},
		"log":           {"all", "log.requests", `"all"`},
	}
	before := values("")
	for name, f := range flags {
		after := values("-" + name + " " + f.value)
		require.Equal(t, f.want+"\n", after[f.setting], name)
		for setting, value := range after {
			part, _, _ := strings.Cut(f.setting, ".") // which may not have been there
			if setting != f.setting && !strings.HasPrefix(setting, strings.TrimSuffix(part, "[]")) {
				require.Equal(t, before[setting], value, "%s changes %s", name, setting)
			}
		}
	}

	var help bytes.Buffer
	_, _ = parseOptions([]string{"-h"}, &help)
	elsewhere := []string{"endpoints", "kv-tokens", "config", "check"}
	for _, m := range regexp.MustCompile(`(?m)^  -(\S+)`).FindAllStringSubmatch(help.String()[strings.Index(help.String(), "\nFlags:"):], -1) {
		require.Contains(t, slices.AppendSeq(elsewhere, maps.Keys(flags)), m[1])
	}
}
