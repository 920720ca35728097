package main

import (
	"fmt"
	"slices"
	"strings"
)

// list is a flag of comma-separated values without duplicates.
type list[T comparable] struct {
	values []T
	read   func(string) (T, error)
}

func listOf[T comparable](read func(string) (T, error), values ...T) *list[T] {
	return &list[T]{values, read}
}

// oneOf reads one of these names.
func oneOf(what string, known ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(known, s) {
			return "", fmt.Errorf("%q is not a %s (known: %s)", s, what, strings.Join(known, ", "))
		}
		return s, nil
	}
}

// Set implements [flag.Value].
func (l *list[T]) Set(s string) error {
	l.values = nil
	seen := map[T]bool{}
	for field := range strings.SplitSeq(s, ",") {
		field = strings.TrimSpace(field)
		value, err := l.read(field)
		if err != nil {
			return err
		}
		if seen[value] {
			return fmt.Errorf("%s is given twice", field)
		}
		seen[value] = true
		l.values = append(l.values, value)
	}
	return nil
}

// String implements [flag.Value].
func (l *list[T]) String() string {
	if l == nil {
		return ""
	}
	fields := make([]string, len(l.values))
	for i, v := range l.values {
		fields[i] = fmt.Sprint(v)
	}
	return strings.Join(fields, ",")
}
