package extproc

import (
	"net/http"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// maxPiece is the longest piece of a body: some proxies accept no message over 64 KiB.
const maxPiece = 62_000

// direction builds the messages of one half of the conversation.
type direction struct {
	headers  func(*extprocv3.CommonResponse) *extprocv3.ProcessingResponse
	body     func(*extprocv3.CommonResponse) *extprocv3.ProcessingResponse
	trailers func() *extprocv3.ProcessingResponse
}

var (
	request = direction{
		func(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
			return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: c}}}
		},
		func(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
			return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}}}
		},
		func() *extprocv3.ProcessingResponse {
			return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
		},
	}
	response = direction{
		func(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
			return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: c}}}
		},
		func(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
			return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: c}}}
		},
		func() *extprocv3.ProcessingResponse {
			return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
		},
	}
)

// streamed is a piece of a body in mode FULL_DUPLEX_STREAMED.
func streamed(piece []byte, last bool) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: piece, EndOfStream: last},
	}}}
}

// replaced replaces a body, or a piece of one.
func replaced(body []byte) *extprocv3.BodyMutation {
	if len(body) == 0 {
		return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_ClearBody{ClearBody: true}}
	}
	return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
}

// set is a header that overwrites: by default, Envoy would append it to what a
// client has sent.
func set(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// destination is the dynamic metadata that names the servers.
func destination(servers string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		balancerNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			DestinationHeader: structpb.NewStringValue(servers),
		}}),
	}}
}

// immediate answers the client without a server. The details go to the proxy's log.
func immediate(status int, header http.Header, body []byte, details string) *extprocv3.ProcessingResponse {
	mutation := &extprocv3.HeaderMutation{}
	for name, values := range header {
		if name != "Content-Length" { // the proxy sets it
			mutation.SetHeaders = append(mutation.SetHeaders, set(strings.ToLower(name), values[0]))
		}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode(status)}, Headers: mutation, Body: body, Details: details,
		},
	}}
}

// headerOf converts a header to that of net/http, and its pseudo-headers.
func headerOf(m *corev3.HeaderMap) (h http.Header, pseudo map[string]string) {
	h, pseudo = make(http.Header, len(m.GetHeaders())), map[string]string{}
	for _, v := range m.GetHeaders() {
		value := v.GetValue()
		if raw := v.GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		if key := v.GetKey(); len(key) > 0 && key[0] == ':' {
			pseudo[key] = value
		} else {
			h.Add(key, value)
		}
	}
	return h, pseudo
}

// upgrades reports whether a request would leave HTTP. Envoy passes on the data after
// that as a body without an end. Other methods upgrade nothing, whatever their header
// says, so their body has an end.
func upgrades(h http.Header, pseudo map[string]string) bool {
	switch pseudo[":method"] {
	case http.MethodGet:
		return h.Get("Upgrade") != ""
	case http.MethodConnect:
		return true
	}
	return false
}

// statusOf is the status of a response, or 0 if it has none.
func statusOf(pseudo map[string]string) int {
	n, _ := strconv.Atoi(pseudo[":status"])
	return n
}

// metadataOf is a value of the proxy's metadata, or nil.
func metadataOf(m *corev3.Metadata, namespace, key string) *structpb.Value {
	return m.GetFilterMetadata()[namespace].GetFields()[key]
}
