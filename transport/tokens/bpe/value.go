package bpe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/exec"
)

// Templates see JSON as Python does: object members are ordered, and integers differ
// from floats. Objects are *exec.Dict, which keeps the order, but some of the library's
// operations on them don't; these are replaced here.

// parseValue parses one JSON value.
func parseValue(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := nextValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("bpe: more than one value")
	}
	return v, nil
}

func nextValue(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		if i, err := strconv.Atoi(t.String()); err == nil {
			return i, nil
		}
		if !strings.ContainsAny(t.String(), ".eE") {
			return nil, fmt.Errorf("bpe: %s is too large", t)
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			list := []any{}
			for d.More() {
				v, err := nextValue(d)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, err
		}
		o := exec.NewDict()
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := nextValue(d)
			if err != nil {
				return nil, err
			}
			set(o, name.(string), v)
		}
		_, err := d.Token()
		return o, err
	}
	return t, nil
}

// set sets a member, keeping its place if it exists.
func set(o *exec.Dict, name string, v any) {
	for _, p := range o.Pairs {
		if p.Key.String() == name {
			p.Value = exec.AsValue(v)
			return
		}
	}
	o.Pairs = append(o.Pairs, &exec.Pair{Key: exec.AsValue(name), Value: exec.AsValue(v)})
}

// get returns a member; nil if it is absent or null.
func get(o *exec.Dict, name string) any {
	for _, p := range o.Pairs {
		if p.Key.String() == name {
			return p.Value.Interface()
		}
	}
	return nil
}

// orderedMethods are the methods of objects.
var orderedMethods = exec.NewMethodSet(map[string]exec.Method[map[string]any]{
	"keys": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
		var all []any
		for _, p := range pairs(self) {
			all = append(all, p.Key.Interface())
		}
		return all, nil
	},
	"values": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
		var all []any
		for _, p := range pairs(self) {
			all = append(all, p.Value.Interface())
		}
		return all, nil
	},
	"items": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) { return itemsOf(self), nil },
	"get": func(self map[string]any, value *exec.Value, args *exec.VarArgs) (any, error) {
		method, _ := builtins.Methods.Dict.Get("get")
		if len(args.Args) > 0 {
			for _, p := range pairs(value) {
				if p.Key.EqualValueTo(args.Args[0]) {
					return p.Value.Interface(), nil
				}
			}
		}
		return method(self, value, args)
	},
})

// pairs returns the members of an object in order.
func pairs(v *exec.Value) (all []*exec.Pair) {
	v.Iterate(func(_, _ int, key, value *exec.Value) bool {
		all = append(all, &exec.Pair{Key: key, Value: value})
		return true
	}, func() {})
	return all
}

func itemsOf(v *exec.Value) []any {
	all := []any{}
	for _, p := range pairs(v) {
		all = append(all, []any{p.Key.Interface(), p.Value.Interface()})
	}
	return all
}

// items is Jinja's filter of that name.
func items(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if !in.IsDict() {
		return exec.AsValue(errRefused)
	}
	return exec.AsValue(itemsOf(in))
}

// toJSON is the filter of that name in transformers: json.dumps with ensure_ascii=False.
func toJSON(_ *exec.Evaluator, in *exec.Value, args *exec.VarArgs) *exec.Value {
	indent := ""
	if v, ok := args.KwArgs["indent"]; ok && v.IsInteger() {
		indent = strings.Repeat(" ", v.Integer())
	} else if len(args.Args) > 0 || ok && !v.IsNil() {
		return exec.AsValue(errRefused)
	}
	var b strings.Builder
	if err := dump(&b, in, indent, "\n"); err != nil {
		return exec.AsValue(err)
	}
	return exec.AsSafeValue(b.String())
}

// dump writes JSON as Python does. Each line begins with line.
func dump(b *strings.Builder, v *exec.Value, indent, line string) error {
	between := ", "
	if indent != "" {
		between = "," + line + indent
	}
	open := func(c byte, n int) {
		b.WriteByte(c)
		if indent != "" && n > 0 {
			b.WriteString(line + indent)
		}
	}
	end := func(c byte, n int) {
		if indent != "" && n > 0 {
			b.WriteString(line)
		}
		b.WriteByte(c)
	}
	switch {
	case v.IsNil():
		b.WriteString("null")
	case v.IsBool():
		b.WriteString(strconv.FormatBool(v.Bool()))
	case v.IsInteger():
		b.WriteString(strconv.Itoa(v.Integer()))
	case v.IsFloat():
		b.WriteString(pythonFloat(v.Float()))
	case v.IsString():
		quote(b, v.String())
	case v.IsDict():
		all := pairs(v)
		open('{', len(all))
		for i, p := range all {
			if i > 0 {
				b.WriteString(between)
			}
			quote(b, p.Key.String())
			b.WriteString(": ")
			if err := dump(b, p.Value, indent, line+indent); err != nil {
				return err
			}
		}
		end('}', len(all))
	case v.IsList():
		n := v.Len()
		open('[', n)
		for i := range n {
			if i > 0 {
				b.WriteString(between)
			}
			if err := dump(b, v.Index(i), indent, line+indent); err != nil {
				return err
			}
		}
		end(']', n)
	default:
		return errRefused
	}
	return nil
}

// quote writes a string as json.dumps does, without escaping non-ASCII characters.
func quote(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch r {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case '\t':
			b.WriteString(`\t`)
		case '\b':
			b.WriteString(`\b`)
		case '\f':
			b.WriteString(`\f`)
		default:
			if r < ' ' {
				fmt.Fprintf(b, `\u%04x`, r)
			} else {
				b.WriteRune(r)
			}
		}
	}
	b.WriteByte('"')
}

// pythonFloat is Python's repr of a float.
func pythonFloat(f float64) string {
	s := strconv.FormatFloat(f, 'e', -1, 64)
	at := strings.IndexByte(s, 'e')
	exponent, _ := strconv.Atoi(s[at+1:])
	if exponent < -4 || exponent >= 16 {
		return fmt.Sprintf("%se%+03d", s[:at], exponent)
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if f == math.Trunc(f) {
		s += ".0"
	}
	return s
}
