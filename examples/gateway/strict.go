package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/endpick/endpick/scorer/preset/all"
	"go.yaml.in/yaml/v3"
)

// document is a YAML file that was read into a struct, with the lines of its fields.
type document struct {
	name   string         // of the file
	lines  map[string]int // by path, such as "endpoints[1].url"
	files  []string       // that secrets were read from
	hidden *strings.Replacer
}

// fileError says what is wrong with a file, and where.
type fileError struct {
	File   string
	Line   int    // 0: the file as a whole
	Field  string // empty: no particular field
	Reason string
}

func (e *fileError) Error() string {
	where := e.File
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	if e.Field != "" {
		where += ": " + e.Field
	}
	return where + ": " + e.Reason
}

// error returns an error in a line, which shows nothing that the file's author wrote and that may
// be a secret, wherever it was written by mistake.
func (d *document) error(line int, field, reason string) error {
	return &fileError{d.name, line, d.hidden.Replace(field), d.hidden.Replace(reason)}
}

// shortestSecret is the length of the shortest text that may be a key or a password. Shorter ones
// are shown, so that a mistake in them is seen at once.
const shortestSecret = 8

// hide makes a replacer of all texts in a node, and of their parts if they are URLs or files, but
// not of what is public, or is, or might be meant as, one of these words.
func hide(n *yaml.Node, words []string) *strings.Replacer {
	texts := map[string]bool{}
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && nearest(n.Value, words) == "" && !public.MatchString(n.Value) {
			quoted := strconv.Quote(n.Value)
			for _, text := range append(strings.FieldsFunc(n.Value, separates), n.Value, quoted[1:len(quoted)-1]) {
				texts[text] = len(text) >= shortestSecret
			}
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	walk(n)
	maps.DeleteFunc(texts, func(_ string, secret bool) bool { return !secret })
	var pairs []string
	for _, text := range slices.SortedFunc(maps.Keys(texts), func(a, b string) int { return len(b) - len(a) }) {
		pairs = append(pairs, text, "…")
	}
	return strings.NewReplacer(pairs...)
}

// public is what is no secret: an IP address with its port, or a variable of the environment.
var public = regexp.MustCompile(`^(\[[0-9a-f:]+\]|[0-9.]+)?:[0-9]+$|^[A-Z]+(_[A-Z]+)+$`)

func separates(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("/:@", r) }

// fieldsOf adds the names of all fields in a struct.
func fieldsOf(t reflect.Type, names map[string]bool) map[string]bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return fieldsOf(t.Elem(), names)
	case reflect.Struct:
		for f := range t.Fields() {
			if name := f.Tag.Get("yaml"); name != "" {
				names[name] = true
				fieldsOf(f.Type, names)
			}
		}
	}
	return names
}

// at returns an error in a field. If the field is absent, the line is that of the nearest
// field around it.
func (d *document) at(field, format string, args ...any) error {
	line := 0
	for around := field; line == 0 && around != ""; {
		line = d.lines[around]
		around = around[:max(strings.LastIndexAny(around, ".["), 0)]
	}
	return d.error(line, field, strings.TrimPrefix(fmt.Sprintf(format, args...), "endpick: "))
}

// readStrict reads YAML into a struct: fields go by their yaml tags, and an absent field keeps
// its value. Fields that are unknown, duplicate, empty or of the wrong type are errors; so are
// negative numbers and durations below a millisecond, which have the wrong unit, aliases and
// anchors, without which a file is easier to read, and tags, which nothing here understands.
func readStrict(name string, text []byte, into any) (*document, error) {
	broken := func(err error) error {
		var line int
		reason := strings.TrimPrefix(err.Error(), "yaml: ")
		if n, _ := fmt.Sscanf(reason, "line %d:", &line); n == 1 {
			_, reason, _ = strings.Cut(reason, ": ")
		}
		reason = quoted.ReplaceAllStringFunc(reason, func(text string) string {
			if len(text) > len("':'") {
				return "'…'"
			}
			return text
		})
		return &fileError{name, cmp.Or(brokenLine(text), line), "", reason}
	}
	if !utf8.Valid(text) {
		return nil, &fileError{File: name, Reason: "is not UTF-8"}
	}
	var root, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	switch err := documents.Decode(&root); {
	case err == io.EOF || err == nil && len(root.Content) == 0:
		return nil, &fileError{File: name, Reason: "is empty"}
	case err != nil:
		return nil, broken(err)
	}
	if err := documents.Decode(&more); err == nil {
		return nil, &fileError{name, more.Line, "", "is a second document; there is to be one"}
	} else if err != io.EOF {
		return nil, broken(err)
	}
	fields := fieldsOf(reflect.TypeOf(into), map[string]bool{})
	words := slices.Concat(slices.Collect(maps.Keys(fields)), slices.Collect(maps.Keys(removedFields)), all.Names())
	d := &document{name: name, lines: map[string]int{}, hidden: hide(&root, words)}
	return d, d.decode(root.Content[0], "", reflect.ValueOf(into).Elem())
}

// quoted is what the parser quotes: a character that it expects, or a text that may be a secret.
var quoted = regexp.MustCompile("'[^']*'")

// brokenLine is the line from which on a text is no YAML: the parser names the one where it was last
// sure, or where it gave up. 0: it would take too long to find.
func brokenLine(text []byte) int {
	lines := bytes.SplitAfter(text, []byte("\n"))
	for budget := 16 << 20; len(lines) > 0 && budget > 0; budget -= len(text) {
		n := len(lines)
		lines = lines[:n-1]
		text = bytes.Join(lines, nil)
		documents, err := yaml.NewDecoder(bytes.NewReader(text)), error(nil)
		for err == nil {
			err = documents.Decode(new(yaml.Node))
		}
		if err == io.EOF {
			return n
		}
	}
	return 0
}

// tagged does not show the tag, because a key that begins with ! is taken for one.
const tagged = "has a YAML tag, which is not supported (text that begins with ! needs quotes)"

// removedFields are the ends of fields of earlier versions, and what replaces them.
var removedFields = map[string]string{
	"allow_administration": "name the paths to pass on in pass",
	"deny_unknown":         "only the known APIs are passed on, and what pass names",
	".tokens.files":        "engines and renderers know their token ids; give the URL of one in render or llama",
}

func (d *document) decode(n *yaml.Node, path string, into reflect.Value) error {
	if path != "" {
		d.lines[path] = n.Line
	}
	bad := func(format string, args ...any) error {
		return d.error(n.Line, path, fmt.Sprintf(format, args...))
	}
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return bad("is or has an alias, which is not supported")
	case n.Style&yaml.TaggedStyle != 0:
		return bad(tagged)
	case n.Tag == "!!null":
		return bad("is empty")
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	if v, ok := into.Addr().Interface().(*secret); ok && n.Kind == yaml.MappingNode {
		return d.decodeSecret(n, path, v)
	}
	switch into.Kind() {
	case reflect.Struct, reflect.Map:
		if n.Kind != yaml.MappingNode && into.Kind() == reflect.Struct {
			return bad("is not a mapping, such as {%s: …}", into.Type().Field(0).Tag.Get("yaml"))
		} else if n.Kind != yaml.MappingNode {
			return bad("is not a mapping")
		}
		return d.decodeMapping(n, path, into)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return bad("is not a list, such as [a, b]")
		}
		into.Set(reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content)))
		for i, c := range n.Content {
			if err := d.decode(c, fmt.Sprintf("%s[%d]", path, i), into.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := decodeScalar(n, into); err != nil {
		return bad("%v", err)
	}
	return nil
}

func (d *document) decodeMapping(n *yaml.Node, path string, into reflect.Value) error {
	fields := map[string]reflect.Value{}
	if into.Kind() == reflect.Map {
		into.Set(reflect.MakeMap(into.Type()))
	} else {
		for i := range into.NumField() {
			fields[into.Type().Field(i).Tag.Get("yaml")] = into.Field(i)
		}
		delete(fields, "") // what no file sets
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		field := strings.TrimPrefix(path+"."+key.Value, ".")
		bad := func(format string, args ...any) error {
			return d.error(key.Line, field, fmt.Sprintf(format, args...))
		}
		v, known := fields[key.Value]
		if into.Kind() == reflect.Map {
			v, known = reflect.New(into.Type().Elem()).Elem(), true
		}
		switch before, twice := seen[key.Value]; {
		case key.Style&yaml.TaggedStyle != 0:
			return bad(tagged)
		case key.Kind != yaml.ScalarNode || key.Value == "" || key.Tag == "!!null":
			return bad("is no name")
		case twice:
			return bad("is given twice, first in line %d", before)
		case !known:
			for end, instead := range removedFields {
				if strings.HasSuffix(field, end) {
					return bad("is no field any more: %s", instead)
				}
			}
			names := slices.Sorted(maps.Keys(fields))
			all := "; there are " + strings.Join(names, ", ")
			return bad("is an unknown field%s", cmp.Or(nearest(key.Value, names), all))
		}
		seen[key.Value] = key.Line
		if err := d.decode(value, field, v); err != nil {
			return err
		}
		if into.Kind() == reflect.Map {
			into.SetMapIndex(reflect.ValueOf(key.Value), v)
		}
		d.lines[field] = key.Line
	}
	return nil
}

// secret is a text of the file, or of another one ({file: NAME}) or the environment ({env: NAME}).
type secret string

func (d *document) decodeSecret(n *yaml.Node, path string, into *secret) error {
	var from struct {
		File string `yaml:"file"`
		Env  string `yaml:"env"`
	}
	if err := d.decode(n, path, reflect.ValueOf(&from).Elem()); err != nil {
		return err
	}
	text, found := os.LookupEnv(from.Env)
	switch {
	case (from.File == "") == (from.Env == ""):
		return d.error(n.Line, path, "needs one of file and env")
	case from.File != "":
		if !filepath.IsAbs(from.File) {
			from.File = filepath.Join(filepath.Dir(d.name), from.File)
		}
		d.files = append(d.files, from.File)
		b, err := readKey(from.File)
		if err != nil {
			return d.error(n.Line, path, err.Error())
		}
		text = strings.TrimRight(string(b), "\r\n")
	case !found:
		return d.error(n.Line, path, "names a variable that is not in the environment: "+from.Env)
	}
	if *into = secret(text); text == "" {
		return d.error(n.Line, path, "is empty")
	}
	return nil
}

// readKey reads a file with a key, which has another one's name by mistake if it is long.
func readKey(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err == nil && len(b) > maxKey {
		err = fmt.Errorf("is longer than %d bytes", maxKey)
	}
	return b, err
}

const maxKey = 64 << 10

// nearest suggests the name that begins and ends most like this one, of several the shortest.
func nearest(name string, names []string) (suggestion string) {
	most := len(name) / 2
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	for _, known := range names {
		n, rest := 0, 0
		for n < min(len(name), len(known)) && name[n] == known[n] {
			n++
		}
		for rest < min(len(name), len(known))-n && name[len(name)-1-rest] == known[len(known)-1-rest] {
			rest++
		}
		if n+rest > most {
			most, suggestion = n+rest, ": did you mean "+known+"?"
		}
	}
	return suggestion
}

// decodeScalar decodes text, a boolean, a number, a duration or a [byteSize].
func decodeScalar(n *yaml.Node, into reflect.Value) error {
	kind, tag := "text", n.Tag
	switch into.Interface().(type) {
	case time.Duration:
		kind = "a duration, such as 500ms or 1m30s"
	case byteSize:
		kind = "a number of bytes, such as 65536 or 64 MiB"
	case bool:
		kind, tag = "true or false", "!!bool"
	case int, uint64, signed:
		kind, tag = "a whole number", "!!int"
	case float64:
		kind = "a number"
	}
	if n.Kind != yaml.ScalarNode {
		return errors.New("is not " + kind)
	}
	err := n.Decode(into.Addr().Interface())
	switch _, isTime := into.Interface().(time.Duration); {
	case isTime && n.Value == "0":
		into.SetInt(0)
	case into.Kind() == reflect.String && strings.Contains(n.Value, "${"):
		return errors.New("has ${, which is not filled in: keys can be read from {env: NAME} or {file: NAME}")
	case err != nil || n.Tag != tag || into.CanFloat() && !(math.Abs(into.Float()) <= math.MaxFloat64): // NaN isn't, either
		return fmt.Errorf("%q is not %s", n.Value, kind)
	case into.CanInt() && into.Int() < 0 && into.Type() != reflect.TypeFor[signed]() || into.CanFloat() && into.Float() < 0:
		return fmt.Errorf("%s is negative", n.Value)
	}
	if t, ok := into.Interface().(time.Duration); ok && t > 0 && t < time.Millisecond {
		return fmt.Errorf("is %v, less than %v", t, time.Millisecond)
	}
	return nil
}

// signed is a whole number that may be negative.
type signed int

// byteSize is a number of bytes: 1048576, "512 KiB", "64MiB", "2 GiB".
type byteSize int64

// UnmarshalYAML implements [yaml.Unmarshaler].
func (b *byteSize) UnmarshalYAML(n *yaml.Node) error {
	digits := strings.TrimRight(n.Value, "KMGTiB ")
	v, err := strconv.ParseInt(digits, 10, 64)
	shift := map[string]int{"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
	by, ok := shift[strings.TrimSpace(n.Value[len(digits):])]
	if err != nil || !ok || v > math.MaxInt64>>by {
		return errors.New("is not a number of bytes")
	}
	*b = byteSize(v << by)
	return nil
}
