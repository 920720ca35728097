package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// template is a chat template: Jinja, with the additions of Hugging Face's transformers.
type template struct {
	program *exec.Template
	// globals are the names of special tokens, such as bos_token.
	globals map[string]any
	// parts says that the template iterates over the parts of a content.
	parts bool
}

// iteratesContent matches templates that iterate over the parts of a message's content;
// others get them as one string, as engines do it.
var iteratesContent = regexp.MustCompile(`\bfor\s+\w+\s+in\s+\w+(\.content\b|\[['"]content['"]\])`)

func (m *Model) readConfig(text, chatTemplate []byte) error {
	source := string(chatTemplate)
	globals := map[string]any{}
	if len(text) > 0 {
		bad := func(field, format string, args ...any) error {
			return &Error{configFile, field, fmt.Sprintf(format, args...)}
		}
		var all map[string]json.RawMessage
		if err := json.Unmarshal(text, &all); err != nil {
			return bad("", "%v", err)
		}
		for name, v := range all {
			if !strings.HasSuffix(name, "_token") {
				continue
			}
			var token struct{ Content string }
			if json.Unmarshal(v, &token.Content) == nil || json.Unmarshal(v, &token) == nil {
				globals[name] = token.Content
			}
		}
		if source == "" {
			var err error
			if source, err = templateOf(all["chat_template"]); err != nil {
				return bad("chat_template", "%v", err)
			}
		}
	}
	if source == "" {
		return nil
	}
	program, err := compile(source)
	if err != nil {
		return &Error{templateFile, "", err.Error()}
	}
	m.chat = &template{program, globals, iteratesContent.MatchString(source)}
	return nil
}

// templateOf returns the template, which may be in a list with names; empty: none.
func templateOf(v json.RawMessage) (string, error) {
	if len(v) == 0 || string(v) == "null" {
		return "", nil
	}
	var one string
	if json.Unmarshal(v, &one) == nil {
		return one, nil
	}
	var all []struct{ Name, Template string }
	if err := json.Unmarshal(v, &all); err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", fmt.Errorf("has %d templates; only one is supported", len(all))
	}
	return all[0].Template, nil
}

func compile(source string) (*exec.Template, error) {
	c := config.New()
	c.TrimBlocks, c.LeftStripBlocks = true, true
	methods := builtins.Methods
	methods.Dict = orderedMethods
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters)
	if err := errors.Join(filters.Replace("tojson", toJSON), filters.Replace("items", items)); err != nil {
		return nil, err
	}
	// Nothing can be included.
	loader, err := loaders.NewMemoryLoader(map[string]string{"/chat": source})
	if err != nil {
		return nil, err
	}
	return exec.NewTemplate("/chat", c, loader, &exec.Environment{
		Context: exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables),
		Filters: filters, Tests: builtins.Tests, ControlStructures: builtins.ControlStructures, Methods: methods,
	})
}

// errRefused is the error of a template that does not accept the messages.
var errRefused = errors.New("bpe: the chat template refused the messages")

// render renders the text of a prompt. It returns panics of the library as errors.
func (t *template) render(variables map[string]any, now time.Time) (text string, err error) {
	defer func() {
		if v := recover(); v != nil {
			text, err = "", fmt.Errorf("bpe: the template panicked: %v", v)
		}
	}()
	all := maps.Clone(t.globals)
	maps.Copy(all, variables)
	all["raise_exception"] = func(_ *exec.Evaluator, args *exec.VarArgs) (string, error) {
		return "", errRefused
	}
	all["strftime_now"] = func(_ *exec.Evaluator, args *exec.VarArgs) (string, error) {
		if len(args.Args) != 1 {
			return "", errRefused
		}
		return strftime(now, args.Args[0].String())
	}
	return t.program.ExecuteToString(exec.NewContext(all))
}

// strftime supports the parts of a date that chat templates use.
func strftime(now time.Time, format string) (string, error) {
	layouts := map[byte]string{'d': "02", 'b': "Jan", 'B': "January", 'Y': "2006", 'm': "01", 'y': "06", 'H': "15", 'M': "04", 'S': "05", 'A': "Monday", 'a': "Mon", 'p': "PM", 'I': "03"}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		if !ok {
			return "", fmt.Errorf("bpe: strftime_now does not know %%%c", format[i])
		}
		b.WriteString(now.Format(layout))
	}
	return b.String(), nil
}
