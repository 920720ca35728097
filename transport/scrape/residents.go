package scrape

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/endpick/endpick"
)

// Servers that load models when they are asked for say which are in memory: Ollama, llama.cpp with
// several models, llama-swap, LM Studio.

// memory are the pages that say it, besides the states in /v1/models, and the engines that have them.
var memory = [...]struct {
	engine, path string
	read         func(f *Facts, p *memoryPage) bool
}{
	{"ollama", "/api/ps", (*Facts).ollama},
	{"lm-studio", "/api/v1/models", (*Facts).lmStudio},
	{llamaSwap, "/running", (*Facts).llamaSwap},
}

const llamaSwap = "llama-swap" // and its models' owned_by

// memoryPage has the lists of all of them.
type memoryPage struct {
	Models []struct {
		Name    string    `json:"name"`
		Size    float64   `json:"size"`
		Context float64   `json:"context_length"`
		Expires time.Time `json:"expires_at"`

		Key    string  `json:"key"` // from here on LM Studio's
		Bytes  float64 `json:"size_bytes"`
		Loaded []struct {
			Config struct {
				Context float64 `json:"context_length"`
			} `json:"config"`
		} `json:"loaded_instances"`
	} `json:"models"`
	Running []struct {
		Model string `json:"model"`
		State string `json:"state"`
	} `json:"running"`
}

// readMemory adds what an engine has in memory, if it says so.
func (s *Inspector) readMemory(ctx context.Context, e *endpick.Endpoint, f *Facts) error {
	for _, page := range memory {
		if page.engine == llamaSwap && f.Residents == nil {
			continue // its list of models has them
		}
		text, err := s.get(ctx, e, page.path)
		switch {
		case errors.As(err, new(StatusError)):
			continue
		case err != nil:
			return err
		}
		var p memoryPage
		if err := json.Unmarshal(text, &p); err != nil {
			return badPage(page.path, err)
		}
		if !page.read(f, &p) {
			continue
		}
		f.Engine = page.engine
		if page.engine == "ollama" {
			for i := range f.Residents {
				if r := &f.Residents[i]; r.Until.Before(s.config.Router.Now()) {
					r.Until = time.Time{} // it is there all the same: the clocks differ
				}
			}
			return s.readSizes(ctx, e, f)
		}
		return nil
	}
	return nil
}

func sameState(a, b endpick.Resident) bool { return a.Model == b.Model && a.State == b.State }

// resident returns what is known of a model, which is added if it is new and has a name.
func (f *Facts) resident(name string) *endpick.Resident {
	for i := range f.Residents {
		if f.Residents[i].Model == name {
			return &f.Residents[i]
		}
	}
	if name == "" || len(name) > maxName || len(f.Residents) >= maxResidents {
		return new(endpick.Resident)
	}
	f.Residents = append(f.Residents, endpick.Resident{Model: name})
	return &f.Residents[len(f.Residents)-1]
}

// ollama reads /api/ps: what is in memory, or being loaded.
func (f *Facts) ollama(p *memoryPage) bool {
	if p.Models == nil {
		return false
	}
	for _, name := range f.Models {
		if len(f.Residents) == 0 || f.Residents[len(f.Residents)-1].Model != name+latest { // one of two names
			f.resident(name)
		}
	}
	for _, m := range p.Models {
		r := f.resident(m.Name)
		r.State, r.Until = endpick.InMemory, m.Expires
		r.Bytes, r.Context = atMost(m.Size, maxBytes), atMost(m.Context, maxKVTokens)
	}
	return true
}

// maxResidents bounds what policies have to look through in each decision.
const maxResidents = 256

// maxBytes is far more than a model has.
const maxBytes int64 = 1 << 46

// readSizes adds from Ollama's /api/tags how large the models on disk are, which they are about in
// memory, too.
func (s *Inspector) readSizes(ctx context.Context, e *endpick.Endpoint, f *Facts) error {
	text, err := s.get(ctx, e, "/api/tags")
	var page memoryPage
	if err == nil {
		if err = json.Unmarshal(text, &page); err != nil {
			err = badPage("/api/tags", err)
		}
	}
	for _, m := range page.Models {
		if r := f.resident(m.Name); r.Bytes == 0 {
			r.Bytes = atMost(m.Size, maxBytes)
		}
	}
	return err
}

// lmStudio reads LM Studio's own list of models.
func (f *Facts) lmStudio(p *memoryPage) bool {
	for _, m := range p.Models {
		r := f.resident(m.Key)
		r.Bytes = atMost(m.Bytes, maxBytes)
		if len(m.Loaded) > 0 {
			r.State, r.Context = endpick.InMemory, atMost(m.Loaded[0].Config.Context, maxKVTokens)
		}
	}
	return p.Models != nil
}

// llamaSwap reads /running, which tells those that are started from those that are being started.
func (f *Facts) llamaSwap(p *memoryPage) bool {
	for _, m := range p.Running {
		f.resident(m.Model).State = states[m.State]
	}
	return p.Running != nil
}

// states are the words of llama.cpp and llama-swap for where a model is.
var states = map[string]endpick.Residency{
	"loaded": endpick.InMemory, "loading": endpick.Loading, "downloading": endpick.Loading,
	"unloaded": endpick.OnDisk, "sleeping": endpick.OnDisk, "ready": endpick.InMemory, "starting": endpick.Loading,
}
