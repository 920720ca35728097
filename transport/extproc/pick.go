package extproc

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// choice is the answer to the proxy.
type choice struct {
	servers  string // the chosen one and those to try next, in the protocol's format
	mutation *extprocv3.HeaderMutation
	body     [][]byte // as the server should get it
	size     int      // its length
	changed  bool     // it differs from the original
}

// pick chooses a server, or returns the answer for the client if there is none.
func (c *conversation) pick() (*choice, *extprocv3.ProcessingResponse) {
	c.picked = true
	path, query := c.path()
	to, err := c.choose(path, query)
	if err != nil {
		return nil, c.refusal(path, err)
	}
	c.header, c.pseudo, c.body, c.subset = nil, nil, nil, nil
	c.unsaid = destination(to.servers)
	c.keep(c.attempt.Lease)
	return to, nil
}

// path is the request's path with its escapes, and its query.
func (c *conversation) path() (path, query string) {
	if u, err := url.ParseRequestURI(c.pseudo[":path"]); err == nil {
		return u.EscapedPath(), u.RawQuery
	}
	return c.pseudo[":path"], ""
}

func (c *conversation) choose(path, query string) (*choice, error) {
	call, err := c.server.dispatcher.Read(transport.Incoming{Method: c.pseudo[":method"], Path: path, Query: query, Header: c.header, Body: c.body})
	if err != nil {
		return nil, err
	}
	c.call = call
	for _, w := range call.Warnings {
		c.server.warn(w)
	}
	if err := c.describe(&call.Request); err != nil {
		return nil, err
	}
	excluded := c.outsiders()
	call.Request.Exclude = append(call.Request.Exclude, excluded...)
	for {
		attempt, err := call.Route(c.stream.Context())
		if err != nil {
			if c.subset != nil && errors.As(err, new(*endpick.NoEndpointError)) {
				return nil, &endpick.NoEndpointError{Excluded: len(excluded)} // whatever they serve
			}
			return nil, err
		}
		first, err := hostPort(attempt.Endpoint())
		if err == nil {
			c.attempt = attempt
			if c.responseMode == none || c.responseMode == partial {
				attempt.Unread()
			}
			return c.tell(first), nil
		}
		c.server.warn(attempt.Fail(err))
	}
}

// describe sets what the extension's headers say, and calls Config.Describe.
func (c *conversation) describe(req *endpick.Request) (err error) {
	config := &c.server.config
	if config.Objectives != nil {
		if name := c.header.Get(objectiveHeader); name != "" {
			req.Priority = config.Objectives[name]
		}
		req.Tenant = c.header.Get(fairnessHeader)
	}
	if config.RequireModel && req.Model == "" && len(c.body) > 0 && c.pseudo[":method"] == http.MethodPost &&
		!strings.HasPrefix(strings.ToLower(c.header.Get("Content-Type")), "multipart/") {
		return &endpick.RequestError{Field: "model", Reason: "is missing"}
	}
	if config.Describe == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = c.server.panicked("Config.Describe", v)
		}
	}()
	config.Describe(c.header, c.body, req)
	return nil
}

// outsiders are the endpoints outside the proxy's subset, if it names one.
func (c *conversation) outsiders() (ids []string) {
	if c.subset == nil {
		return nil
	}
	wanted := map[string]bool{}
	for _, v := range c.subset.GetListValue().GetValues() {
		wanted[canonical(v.GetStringValue())] = true
	}
	for address := range strings.SplitSeq(c.subset.GetStringValue(), ",") {
		wanted[canonical(address)] = true
	}
	for _, e := range c.server.endpoints() {
		if at, err := hostPort(e); err != nil || !wanted[at] {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// endpoints are those that are not removed: others may have the ID or the address of one that
// is.
func (s *Server) endpoints() (all []*endpick.Endpoint) {
	for _, e := range s.router.Endpoints() {
		if !e.Removed {
			all = append(all, e.Candidate.Endpoint)
		}
	}
	return all
}

// tell builds the answer to the proxy.
func (c *conversation) tell(first string) *choice {
	chosen := c.attempt.Endpoint()
	servers := []string{first}
	c.named = []*endpick.Endpoint{chosen}
	for _, e := range c.attempt.Fallbacks {
		// There is one header for the rank, whichever server gets the request.
		at, err := hostPort(e)
		if err == nil && e.Ranked == chosen.Ranked && e.Rank == chosen.Rank && !slices.Contains(servers, at) {
			servers, c.named = append(servers, at), append(c.named, e)
		}
	}
	to := &choice{servers: strings.Join(servers, ","), body: c.call.Body()}
	for _, b := range to.body {
		to.size += len(b)
	}
	to.changed = len(to.body) != 1 || to.size != len(c.body) || to.size > 0 && &to.body[0][0] != &c.body[0]
	to.mutation = c.mutation(to)
	return to
}

// mutation changes the header of the request.
func (c *conversation) mutation(to *choice) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{}
	m.SetHeaders = append(m.SetHeaders, set(DestinationHeader, to.servers))
	header, names := http.Header{}, [...]string{"Content-Encoding", "Accept-Encoding", "X-Data-Parallel-Rank"}
	for _, name := range names {
		header[name] = c.header[name]
	}
	c.attempt.SetHeader(header)
	for _, name := range names {
		switch v, was := header.Get(name), c.header.Get(name); {
		case v == "" && was != "":
			m.RemoveHeaders = append(m.RemoveHeaders, strings.ToLower(name))
		case v != was:
			m.SetHeaders = append(m.SetHeaders, set(strings.ToLower(name), v))
		}
	}
	if to.changed {
		m.SetHeaders = append(m.SetHeaders, set("content-length", strconv.Itoa(to.size)))
	}
	return m
}

// servedBy reports which server has served the request; empty: the proxy does not say. Those before it
// in the list have failed the request, or were full if that is among their answers.
func (c *conversation) servedBy(address, answers string) {
	if address = canonical(address); address == "" {
		return
	}
	there := func(e *endpick.Endpoint) bool { at, _ := hostPort(e); return at == address }
	all, from := c.named, 1
	i := slices.IndexFunc(all, there)
	if i < 0 {
		all = c.server.endpoints()
		i = slices.IndexFunc(all, there)
		from = i
	}
	if i < 0 {
		c.server.warn(&transport.UpstreamError{Endpoint: address, Err: endpick.ErrUnknownEndpoint})
		return
	}
	for _, e := range all[from : i+1] {
		c.passedOver(answers)
		if err := c.attempt.ServedBy(e.ID); err != nil {
			c.server.warn(err)
		}
	}
}

// passedOver reports what the attempt's server has answered before the proxy went on to another.
func (c *conversation) passedOver(answers string) {
	at, _ := hostPort(c.attempt.Endpoint())
	for answer := range strings.SplitSeq(answers, ",") {
		part := append(strings.Split(answer, " "), "", "")
		status, _ := strconv.Atoi(part[1])
		if canonical(part[0]) == at && status >= http.StatusBadRequest {
			_ = c.attempt.Header(status, http.Header{"Retry-After": {part[2]}}, nil)
		}
	}
}

// refusal is the answer for a client whose request goes to no server.
func (c *conversation) refusal(path string, err error) *extprocv3.ProcessingResponse {
	status, header, body := transport.ErrorResponse(path, err)
	return immediate(status, header, body, err.Error())
}
