package bpe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dlclark/regexp2/v2"
)

// file is the part of Hugging Face's tokenizer.json that is used here.
type file struct {
	Added []struct {
		ID         uint32 `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LeftStrip  bool   `json:"lstrip"`
		RightStrip bool   `json:"rstrip"`
	} `json:"added_tokens"`
	Normalizer    *normalizerFile `json:"normalizer"`
	PreTokenizer  *splitFile      `json:"pre_tokenizer"`
	PostProcessor *postFile       `json:"post_processor"`
	Model         struct {
		Type          string            `json:"type"`
		Dropout       float64           `json:"dropout"`
		Unknown       string            `json:"unk_token"`
		SubwordPrefix string            `json:"continuing_subword_prefix"`
		WordSuffix    string            `json:"end_of_word_suffix"`
		FuseUnknown   bool              `json:"fuse_unk"`
		ByteFallback  bool              `json:"byte_fallback"`
		IgnoreMerges  bool              `json:"ignore_merges"`
		Vocabulary    map[string]uint32 `json:"vocab"`
		Merges        []pair            `json:"merges"`
	} `json:"model"`
}

// pair is "left right", or a list of the two.
type pair [2]string

// UnmarshalJSON implements [json.Unmarshaler].
func (p *pair) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		var l []string
		if err := json.Unmarshal(b, &l); err != nil || len(l) != 2 {
			return fmt.Errorf("%s is not a pair", b)
		}
		*p = pair(l)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	var ok bool
	if p[0], p[1], ok = strings.Cut(s, " "); !ok {
		return fmt.Errorf("%q is not a pair", s)
	}
	return nil
}

// pattern is a pattern to match: one of the two is set.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

type normalizerFile struct {
	Type        string           `json:"type"`
	Normalizers []normalizerFile `json:"normalizers"`
	Prepend     string           `json:"prepend"`
	Pattern     pattern          `json:"pattern"`
	Content     string           `json:"content"`
}

type splitFile struct {
	Type           string      `json:"type"`
	PreTokenizers  []splitFile `json:"pretokenizers"`
	Pattern        pattern     `json:"pattern"`
	Behaviour      string      `json:"behavior"`
	Invert         bool        `json:"invert"`
	AddPrefixSpace bool        `json:"add_prefix_space"`
	UseRegex       *bool       `json:"use_regex"`
	Individual     bool        `json:"individual_digits"`
}

type postFile struct {
	Type       string     `json:"type"`
	Processors []postFile `json:"processors"`
	Single     []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
}

// bad returns an error in tokenizer.json.
func bad(field, format string, args ...any) error {
	return &Error{tokenizerFile, field, fmt.Sprintf(format, args...)}
}

func (m *Model) readTokenizer(text []byte) error {
	var f file
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&f); err != nil {
		return bad("", "%v", err)
	}
	switch {
	case f.Model.Type != "BPE" && (f.Model.Type != "" || len(f.Model.Merges) == 0):
		return bad("model.type", "is %q; only BPE is known", f.Model.Type)
	case f.Model.Dropout != 0:
		return bad("model.dropout", "is %v: ids would be drawn by chance", f.Model.Dropout)
	case f.Model.SubwordPrefix != "" || f.Model.WordSuffix != "":
		return bad("model", "marks the parts of words, which is not known")
	case len(f.Model.Vocabulary) == 0:
		return bad("model.vocab", "is empty")
	}
	if f.Normalizer != nil {
		if err := m.readNormalizer(f.Normalizer); err != nil {
			return err
		}
	}
	if f.PreTokenizer != nil {
		if err := m.readSplits(f.PreTokenizer); err != nil {
			return err
		}
	}
	if err := m.readVocabulary(&f); err != nil {
		return err
	}
	for i, t := range f.Added {
		if t.SingleWord {
			return bad(fmt.Sprintf("added_tokens[%d].single_word", i), "is true, which is not known")
		}
		m.added.add(addedToken{t.Content, t.ID, t.LeftStrip, t.RightStrip})
	}
	if f.PostProcessor != nil {
		return m.readPost(f.PostProcessor)
	}
	return nil
}

func (m *Model) readNormalizer(f *normalizerFile) error {
	switch f.Type {
	case "Sequence":
		for i := range f.Normalizers {
			if err := m.readNormalizer(&f.Normalizers[i]); err != nil {
				return err
			}
		}
	case "NFC":
		m.normal = append(m.normal, nfc)
	case "Prepend":
		m.normal = append(m.normal, func(s string) string {
			if s == "" {
				return s
			}
			return f.Prepend + s
		})
	case "Replace":
		if f.Pattern.String == nil {
			return bad("normalizer", "replaces a regular expression, which is not known")
		}
		m.normal = append(m.normal, func(s string) string { return strings.ReplaceAll(s, *f.Pattern.String, f.Content) })
	default:
		return bad("normalizer", "is a %q, which is not known", f.Type)
	}
	return nil
}

func (m *Model) readSplits(f *splitFile) error {
	add := func(pattern string, how behaviour) error {
		s, err := newSplit(pattern, how)
		if err != nil {
			return bad("pre_tokenizer", "has a pattern that can't be read: %v", err)
		}
		m.splits = append(m.splits, s)
		return nil
	}
	switch f.Type {
	case "Sequence":
		for i := range f.PreTokenizers {
			if err := m.readSplits(&f.PreTokenizers[i]); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		if f.AddPrefixSpace {
			return bad("pre_tokenizer.add_prefix_space", "is true, which is not known")
		}
		m.byteLevel = true
		if f.UseRegex == nil || *f.UseRegex {
			return add(byteLevelPattern, isolated)
		}
		return nil
	case "Digits":
		if f.Individual {
			return add(`\p{N}`, isolated)
		}
		return add(`\p{N}+`, isolated)
	case "Split":
		var text string
		switch {
		case f.Pattern.Regex != nil:
			text = *f.Pattern.Regex
		case f.Pattern.String != nil:
			text = regexp2.Escape(*f.Pattern.String)
		}
		switch {
		case f.Behaviour == "Isolated":
			return add(text, isolated) // the same pieces, whether inverted or not
		case f.Behaviour == "Removed" && f.Invert:
			return add(text, matches)
		case f.Behaviour == "MergedWithPrevious" && !f.Invert:
			return add(text, toPrevious)
		}
		return bad("pre_tokenizer.behavior", "is %q, invert %v, which is not known", f.Behaviour, f.Invert)
	}
	return bad("pre_tokenizer", "is a %q, which is not known", f.Type)
}

func (m *Model) readVocabulary(f *file) error {
	m.wholeFirst = f.Model.IgnoreMerges
	m.vocabulary = f.Model.Vocabulary
	if f.Model.Unknown != "" && !m.byteLevel { // a byte-level model knows everything
		if m.unknown, m.hasUnknown = f.Model.Vocabulary[f.Model.Unknown]; !m.hasUnknown {
			return bad("model.unk_token", "is %q, which is not in the vocabulary", f.Model.Unknown)
		}
		m.fuse = f.Model.FuseUnknown
	}
	m.merges = make(merges, len(f.Model.Merges))
	for rank, p := range f.Model.Merges {
		left, a := f.Model.Vocabulary[p[0]]
		right, b := f.Model.Vocabulary[p[1]]
		result, c := f.Model.Vocabulary[p[0]+p[1]]
		if !a || !b || !c {
			return bad(fmt.Sprintf("model.merges[%d]", rank), "%q is of tokens that are not there", p)
		}
		m.merges[[2]uint32{left, right}] = merge{int32(rank), result} // of duplicates, the last one wins
	}
	switch {
	case m.byteLevel:
		return m.readBytes(f)
	case f.Model.ByteFallback:
		for b := range m.bytes {
			m.bytes[b], m.hasByte[b] = f.Model.Vocabulary[fmt.Sprintf("<0x%02X>", b)]
		}
	}
	return nil
}

// readBytes converts the vocabulary to bytes.
func (m *Model) readBytes(f *file) error {
	m.vocabulary = make(map[string]uint32, len(f.Model.Vocabulary))
	for spelled, id := range f.Model.Vocabulary {
		text, err := bytesOf(spelled)
		if err != nil {
			continue // one that no text contains, such as a special token
		}
		m.vocabulary[text] = id
		if len(text) == 1 {
			m.bytes[text[0]], m.hasByte[text[0]] = id, true
		}
	}
	for b, ok := range m.hasByte {
		if !ok {
			return bad("model.vocab", "has no token for byte %d", b)
		}
	}
	return nil
}

func (m *Model) readPost(f *postFile) error {
	switch f.Type {
	case "Sequence":
		for i := range f.Processors {
			if err := m.readPost(&f.Processors[i]); err != nil {
				return err
			}
		}
	case "ByteLevel": // concerns offsets only
	case "TemplateProcessing":
		text := false
		for _, s := range f.Single {
			if s.SpecialToken == nil {
				text = true
				continue
			}
			ids := f.SpecialTokens[s.SpecialToken.ID].IDs
			if text {
				m.after = append(m.after, ids...)
			} else {
				m.before = append(m.before, ids...)
			}
		}
	default:
		return bad("post_processor", "is a %q, which is not known", f.Type)
	}
	return nil
}
