package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// document is a YAML file that was read into a struct, with the lines of its
// fields.
type document struct {
	name  string         // of the file
	lines map[string]int // by path, such as "endpoints[1].url"
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

// at returns an error in a field. If the field is absent, the line is that of
// the nearest field around it.
func (d *document) at(field, format string, args ...any) error {
	line := 0
	for around := field; line == 0 && around != ""; {
		line = d.lines[around]
		around = around[:max(strings.LastIndexAny(around, ".["), 0)]
	}
	return &fileError{d.name, line, field, fmt.Sprintf(format, args...)}
}

// readStrict reads YAML into a struct: fields go by their yaml tags. Fields that are
// unknown, duplicate or of the wrong type are errors. So are aliases and anchors,
// without which a file is easier to read, and tags, which nothing here understands.
//
// The types are structs, pointers to them, maps with names for keys, slices, strings,
// booleans, numbers, time.Duration ("1m30s") and byteSize ("64 MiB"). An absent field
// keeps its value.
func readStrict(name string, text []byte, into any) (*document, error) {
	d := &document{name: name, lines: map[string]int{}}
	if !utf8.Valid(text) {
		return nil, &fileError{File: name, Reason: "is not UTF-8"}
	}
	var root, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	switch err := documents.Decode(&root); {
	case err == io.EOF || err == nil && len(root.Content) == 0:
		return nil, &fileError{File: name, Reason: "is empty"}
	case err != nil:
		line, reason := yamlLine(err)
		return nil, &fileError{name, line, "", reason}
	}
	if err := documents.Decode(&more); err == nil {
		return nil, &fileError{name, more.Line, "", "is a second document; there is to be one"}
	} else if err != io.EOF {
		line, reason := yamlLine(err)
		return nil, &fileError{name, line, "", reason}
	}
	return d, d.decode(root.Content[0], "", reflect.ValueOf(into).Elem())
}

// yamlLine extracts the line number from a parser error's text.
func yamlLine(err error) (int, string) {
	reason := strings.TrimPrefix(err.Error(), "yaml: ")
	rest, ok := strings.CutPrefix(reason, "line ")
	if !ok {
		return 0, reason
	}
	number, after, _ := strings.Cut(rest, ": ")
	line, err := strconv.Atoi(number)
	if err != nil {
		return 0, reason
	}
	return line, after
}

func (d *document) decode(n *yaml.Node, path string, into reflect.Value) error {
	if path != "" {
		d.lines[path] = n.Line
	}
	bad := func(format string, args ...any) error {
		return &fileError{d.name, n.Line, path, fmt.Sprintf(format, args...)}
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return bad("is or has an alias, which is not supported")
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return bad(tagged)
	}
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		return d.decode(n, path, into.Elem())
	case reflect.Struct, reflect.Map:
		if n.Kind != yaml.MappingNode {
			return bad("is %s, not a mapping", kindOfNode(n))
		}
		return d.decodeMapping(n, path, into)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return bad("is %s, not a list", kindOfNode(n))
		}
		into.Set(reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content)))
		for i, c := range n.Content {
			if err := d.decode(c, fmt.Sprintf("%s[%d]", path, i), into.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return bad("is %s, not %s", kindOfNode(n), kindOfGo(into))
	}
	if err := setScalar(n, into); err != nil {
		return bad("%v", err)
	}
	return nil
}

// tagged does not show the tag, because a key that begins with ! is taken for one.
const tagged = "has a YAML tag, which is not supported (text that begins with ! needs quotes)"

func (d *document) decodeMapping(n *yaml.Node, path string, into reflect.Value) error {
	fields := map[string]reflect.Value{}
	if into.Kind() == reflect.Map {
		into.Set(reflect.MakeMap(into.Type()))
	} else {
		for i := range into.NumField() {
			if name := into.Type().Field(i).Tag.Get("yaml"); name != "" {
				fields[name] = into.Field(i)
			}
		}
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		field := key.Value
		if path != "" {
			field = path + "." + key.Value
		}
		bad := func(format string, args ...any) error {
			return &fileError{d.name, key.Line, field, fmt.Sprintf(format, args...)}
		}
		if key.Style&yaml.TaggedStyle != 0 {
			return bad(tagged)
		}
		if key.Kind != yaml.ScalarNode || key.Value == "" || key.Tag == "!!null" {
			return bad("is no name")
		}
		if before, twice := seen[key.Value]; twice {
			return bad("is given twice, first in line %d", before)
		}
		seen[key.Value] = key.Line
		if into.Kind() == reflect.Map {
			v := reflect.New(into.Type().Elem()).Elem()
			if err := d.decode(value, field, v); err != nil {
				return err
			}
			into.SetMapIndex(reflect.ValueOf(key.Value), v)
			d.lines[field] = key.Line
			continue
		}
		v, ok := fields[key.Value]
		if !ok {
			for end, instead := range removedFields {
				if strings.HasSuffix(field, end) {
					return bad("is no field any more: %s", instead)
				}
			}
			return bad("is an unknown field")
		}
		if err := d.decode(value, field, v); err != nil {
			return err
		}
		d.lines[field] = key.Line
	}
	return nil
}

// removedFields are the ends of fields of earlier versions, and what replaces them.
var removedFields = map[string]string{
	".tokens.files": "engines and renderers know their token ids; give the URL of one in render or llama",
}

// byteSize is a number of bytes: 1048576, "512 KiB", "64MiB", "2 GiB".
type byteSize int64

func parseByteSize(s string) (byteSize, error) {
	digits := strings.TrimRight(s, "KMGTiB ")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of bytes (example: 64 MiB)", s)
	}
	shift := map[string]int{"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
	by, ok := shift[strings.TrimSpace(s[len(digits):])]
	if !ok || n > math.MaxInt64>>by || n < math.MinInt64>>by {
		return 0, fmt.Errorf("%q is not a number of bytes (example: 64 MiB)", s)
	}
	return byteSize(n << by), nil
}

func setScalar(n *yaml.Node, into reflect.Value) error {
	switch into.Interface().(type) {
	case time.Duration:
		v, err := time.ParseDuration(n.Value)
		if err != nil {
			return fmt.Errorf("%q is not a duration (example: 500ms)", n.Value)
		}
		into.SetInt(int64(v))
		return nil
	case byteSize:
		v, err := parseByteSize(n.Value)
		into.SetInt(int64(v))
		return err
	}
	var err error
	switch into.Kind() {
	case reflect.String:
		into.SetString(n.Value)
		return nil
	case reflect.Bool:
		if n.Tag != "!!bool" {
			err = errors.New("")
		}
		into.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int:
		var v int64
		v, err = strconv.ParseInt(n.Value, 10, into.Type().Bits())
		into.SetInt(v)
	case reflect.Uint64:
		var v uint64
		v, err = strconv.ParseUint(n.Value, 10, 64)
		into.SetUint(v)
	case reflect.Float64:
		var v float64
		v, err = strconv.ParseFloat(n.Value, 64)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			err = errors.New("")
		}
		into.SetFloat(v)
	}
	if err != nil {
		return fmt.Errorf("%q is not %s", n.Value, kindOfGo(into))
	}
	return nil
}

func kindOfNode(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	}
	return strconv.Quote(n.Value)
}

func kindOfGo(v reflect.Value) string {
	switch v.Interface().(type) {
	case time.Duration:
		return "a duration, such as 500ms or 1m30s"
	case byteSize:
		return "a number of bytes, such as 65536 or 64 MiB"
	}
	switch v.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Uint64:
		return "a whole number"
	}
	return "a number"
}
