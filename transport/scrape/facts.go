package scrape

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/host"
)

// What an engine reports about itself is capped at these, far beyond real values, so
// that a broken one can't claim all of the router's memory for its cache.
const (
	maxKVTokens  = 1 << 30
	maxSequences = 1 << 20
	maxNames     = 4096
	maxName      = 256
	maxAliases   = 64
)

// atMost converts v to an integer in [0, most].
func atMost[T int | int64](v float64, most T) T {
	if !(v > 0) {
		return 0
	}
	return T(math.Min(v, float64(most)))
}

// vllm reads vLLM's vllm:cache_config_info, whose labels are the configuration of the
// cache: that of the endpoint's rank, or the sum of all ranks.
func (p page) vllm(e *endpick.Endpoint) Facts {
	f := Facts{Engine: "vllm"}
	tokens := 0.0
	info := p["vllm_cache_config_info"]
	for i := range info {
		if e.Ranked && !info[i].ofRank(e.Rank) {
			continue
		}
		number := func(label string) float64 {
			text, _ := info[i].label(label)
			n, _ := strconv.ParseFloat(text, 64) // "None" until it is known
			return n
		}
		block, blocks := number("block_size"), number("num_gpu_blocks")
		f.BlockTokens = atMost(block, maxKVTokens)
		tokens += max(block*blocks, 0)
	}
	f.KVTokens = atMost(tokens, maxKVTokens)
	return f
}

// publisher is where a rank publishes events.
type publisher struct {
	Rank   int    `json:"data_parallel_rank"`
	Kind   string `json:"publisher"`
	Events string `json:"endpoint"`
	Replay string `json:"replay_endpoint"`
}

// publishes reads vLLM's /kv_event_sources: publishers by rank, or a list of them. Of an endpoint
// that stands for several ranks it takes none, since each has a cache of its own.
func (f *Facts) publishes(text []byte, e *endpick.Endpoint) {
	var ranks map[int]publisher
	if json.Unmarshal(text, &ranks) != nil {
		var list []publisher
		_ = json.Unmarshal(text, &list) // there is none if it is neither
		ranks = map[int]publisher{}
		for _, p := range list {
			ranks[p.Rank] = p
		}
	}
	own := ranks[e.Rank]
	server, err := host.Parse(e.Address)
	if err != nil || own.Kind != "zmq" && own.Kind != "" || !e.Ranked && len(ranks) > 1 {
		return
	}
	at := func(address string) string {
		port, err := strconv.ParseUint(address[strings.LastIndexByte(address, ':')+1:], 10, 16)
		if err != nil || port == 0 || !strings.HasPrefix(address, "tcp://") {
			return ""
		}
		return net.JoinHostPort(server.Hostname(), strconv.FormatUint(port, 10))
	}
	if f.Events = at(own.Events); f.Events != "" {
		f.Replay = at(own.Replay)
	}
}

// llamaFacts reads llama.cpp's /props. Its slots share the context, and it reports
// the share of one.
func llamaFacts(text []byte, _ *endpick.Endpoint) (Facts, error) {
	var props struct {
		Slots     *float64 `json:"total_slots"`
		Instances float64  `json:"max_instances"` // of a server with several models
		Settings  struct {
			Context float64 `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := json.Unmarshal(text, &props); err != nil {
		return Facts{}, err
	}
	if props.Slots == nil {
		f := Facts{MaxResidents: atMost(props.Instances, maxNames)}
		if f.MaxResidents > 0 {
			f.Engine = "llama.cpp"
		}
		return f, ErrNoFacts
	}
	return Facts{
		Engine: "llama.cpp", BlockTokens: 1,
		MaxSequences: atMost(*props.Slots, maxSequences),
		KVTokens:     atMost(*props.Slots*props.Settings.Context, maxKVTokens),
	}, nil
}

// sglangFacts reads SGLang's /get_server_info, later called /server_info: its
// arguments, and the state of each data-parallel rank.
func sglangFacts(text []byte, e *endpick.Endpoint) (Facts, error) {
	var info struct {
		Tokens float64  `json:"max_total_num_tokens"` // per rank
		Page   float64  `json:"page_size"`
		Most   *float64 `json:"max_running_requests"`
		States []struct {
			Most   float64 `json:"effective_max_running_requests_per_dp"`
			Memory struct {
				Tokens float64 `json:"token_capacity"`
			} `json:"memory_usage"`
		} `json:"internal_states"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return Facts{}, err
	}
	if info.Tokens == 0 && len(info.States) == 0 {
		return Facts{}, ErrNoFacts
	}
	f := Facts{Engine: "sglang", BlockTokens: atMost(info.Page, maxKVTokens)}
	tokens, most := 0.0, 0.0
	for rank, s := range info.States {
		if e.Ranked && rank != e.Rank {
			continue
		}
		tokens += cmp.Or(s.Memory.Tokens, info.Tokens)
		most += s.Most
	}
	if len(info.States) == 0 {
		tokens = info.Tokens
	}
	if most == 0 && info.Most != nil {
		most = *info.Most
	}
	f.KVTokens, f.MaxSequences = atMost(tokens, maxKVTokens), atMost(most, maxSequences)
	return f, nil
}

// latest is the tag of Ollama's models that clients may leave out.
const latest = ":latest"

type listedModel struct {
	ID     string  `json:"id"`
	Parent *string `json:"parent"`
	Owner  string  `json:"owned_by"`
	Status struct {
		Value string `json:"value"`
	} `json:"status"` // of llama.cpp with several models, and of llama-swap since 2026
	Aliases []string `json:"aliases"` // llama.cpp's
	Meta    struct {
		Swap struct {
			Type    string   `json:"type"`
			Aliases []string `json:"aliases"`
		} `json:"llamaswap"`
	} `json:"meta"`
}

// serves reads a list of models, without members of other types. Those with a parent are adapters.
func (f *Facts) serves(text []byte) error {
	var list struct {
		Data   []listedModel `json:"data"`
		Models []struct {
			Name string `json:"name"`
		} `json:"models"` // of Ollama's /api/tags
	}
	if err := json.Unmarshal(text, &list); err != nil && (!errors.As(err, new(*json.UnmarshalTypeError)) || len(list.Data)+len(list.Models) == 0) {
		return err
	}
	if len(list.Data) == 0 {
		for _, m := range list.Models {
			list.Data = append(list.Data, listedModel{ID: m.Name})
		}
	}
	for _, m := range list.Data {
		switch {
		case m.ID == "" || len(m.ID) > maxName || len(f.Models)+len(f.Adapters) >= maxNames, m.Meta.Swap.Type == "alias": // its model has it
			continue
		case m.Parent != nil && *m.Parent != "":
			f.Adapters = append(f.Adapters, m.ID)
			if long := *m.Parent + ":" + m.ID; f.Engine == "sglang" && len(long) <= maxName { // as it wants adapters to be named
				f.Adapters = append(f.Adapters, long)
			}
			continue
		}
		f.Models = append(f.Models, m.ID)
		if short, ok := strings.CutSuffix(m.ID, latest); ok && short != "" {
			f.Models = append(f.Models, short)
		}
		aliases := slices.DeleteFunc(append(m.Aliases, m.Meta.Swap.Aliases...), func(a string) bool { return a == "" || len(a) > maxName })
		aliases = aliases[:min(len(aliases), maxAliases)]
		f.Models = append(f.Models, aliases...)
		if state, known := states[m.Status.Value]; known || m.Owner == llamaSwap {
			*f.resident(m.ID) = endpick.Resident{Model: m.ID, State: state, Aliases: aliases}
		}
	}
	return nil
}
