package bpe

import (
	"time"

	"github.com/dlclark/regexp2/v2"
)

// split cuts a text at the matches of a pattern, before any merge.
type split struct {
	pattern *regexp2.Regexp
	how     behaviour
}

type behaviour int

const (
	isolated   behaviour = iota // matches and the text between them are pieces
	matches                     // the text between matches is dropped
	toPrevious                  // a match belongs to the text before it
)

// matchWithin limits the time of a match: patterns come from the model, but texts from anybody.
const matchWithin = 2 * time.Second

// byteLevelPattern is GPT-2's, by which ByteLevel splits if so configured.
const byteLevelPattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func newSplit(pattern string, how behaviour) (split, error) {
	re, err := regexp2.Compile(pattern)
	if err != nil {
		return split{}, err
	}
	re.MatchTimeout = matchWithin
	return split{re, how}, nil
}

// pieces are the parts of a text that are merged separately.
func (m *Model) pieces(text string) ([]string, error) {
	all := []string{text}
	for _, s := range m.splits {
		var next []string
		for _, part := range all {
			var err error
			if next, err = s.append(next, part); err != nil {
				return nil, err
			}
		}
		all = next
	}
	return all, nil
}

func (s split) append(dst []string, text string) ([]string, error) {
	found, err := s.pattern.FindAllStringIndex(text, -1)
	if err != nil {
		return dst, err
	}
	add := func(piece string) {
		if piece != "" {
			dst = append(dst, piece)
		}
	}
	from := 0
	for _, at := range found {
		switch s.how {
		case isolated:
			add(text[from:at[0]])
			add(text[at[0]:at[1]])
		case matches:
			add(text[at[0]:at[1]])
		case toPrevious:
			add(text[from:at[1]])
		}
		from = at[1]
	}
	if s.how != matches {
		add(text[from:])
	}
	return dst, nil
}
