package main

import (
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settingRow shows that a setting has an effect: what is seen of a gateway whose file has one
// value, and of another whose file has the other.
type settingRow struct {
	setting string // its path, with [] and {} for elements of lists and mappings
	// file has the value at VALUE, and the addresses of servers at names such as ONE and TWO; see
	// newWorld, which adds listen and endpoints if there are none.
	file   string
	values [2]string
	see    func(w *world) string
	// want is what is seen. Empty: something that only the value determines.
	want [2]string
}

// Every setting changes something that can be observed. A reload changes it too, or logs that a
// restart is needed, and then changes nothing.
func TestEverySetting(t *testing.T) {
	missing := map[string]bool{}
	for _, setting := range settingsIn(reflect.TypeFor[settings](), "") {
		missing[setting] = true
	}
	for _, row := range everySetting {
		require.Contains(t, missing, row.setting, "given twice, or no setting")
		delete(missing, row.setting)
	}
	require.Empty(t, missing, "settings without a row in everySetting")
	hangups := make(chan os.Signal, 1) // so that none ends the process, whoever runs at the time
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	for _, row := range everySetting {
		t.Run(row.setting, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, []string{row.setting}, newWorld(t, &row).differing(), "the files differ in the setting alone")
			want := row.want
			for i, value := range row.values {
				seen := newWorld(t, &row).look(i, false)
				if row.want == ([2]string{}) {
					want[i] = newWorld(t, &row).look(i, false)
				}
				assert.Equal(t, want[i], seen, value)
			}
			assert.NotEqual(t, want[0], want[1])

			w := newWorld(t, &row)
			seen := w.look(0, true)
			if w.refused {
				assert.Equal(t, want[0], seen, "a reload that needs a restart has changed something")
			} else {
				assert.Equal(t, want[1], seen, "a reload has not applied it")
			}
		})
	}
}

// settingsIn returns the paths of all settings in a type.
func settingsIn(of reflect.Type, path string) (all []string) {
	switch {
	case of.Kind() == reflect.Pointer:
		return settingsIn(of.Elem(), path)
	case of.Kind() == reflect.Slice && of.Elem().Kind() == reflect.Struct:
		return settingsIn(of.Elem(), path+"[]")
	case of.Kind() == reflect.Map && of.Elem().Kind() == reflect.Struct:
		return settingsIn(of.Elem(), path+"{}")
	case of.Kind() != reflect.Struct:
		return []string{path}
	}
	for i := range of.NumField() {
		if name := of.Field(i).Tag.Get("yaml"); name != "" {
			all = append(all, settingsIn(of.Field(i).Type, strings.TrimPrefix(path+"."+name, "."))...)
		}
	}
	return all
}

// valuesIn adds the values of all settings, as text, by path.
func valuesIn(v reflect.Value, path string, all map[string]string) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			valuesIn(v.Elem(), path, all)
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			valuesIn(v.Index(i), path+"[]", all)
		}
	case v.Kind() == reflect.Map && v.Type().Elem().Kind() == reflect.Struct:
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) }) {
			valuesIn(v.MapIndex(key), path+"{}", all)
		}
	case v.Kind() != reflect.Struct:
		all[path] += fmt.Sprintf("%#v\n", v.Interface())
	default:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Tag.Get("yaml"); name != "" {
				valuesIn(v.Field(i), strings.TrimPrefix(path+"."+name, "."), all)
			}
		}
	}
}
