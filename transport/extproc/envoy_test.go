package extproc_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/endpick/endpick/transport/extproc"
)

// documented is the Envoy configuration in docs/extproc.md.
func documented(t *testing.T) string {
	text, err := os.ReadFile("../../docs/extproc.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "```yaml\n")
	require.True(t, ok)
	file, after, ok := strings.Cut(rest, "```\n")
	require.True(t, ok)
	require.NotContains(t, after, "```yaml", "all of it is one file")
	return file
}

// bootstrap reads a file as Envoy does: unknown fields are errors, and so are
// violations of a message's rules, packed messages included.
func bootstrap(file string) (*bootstrapv3.Bootstrap, map[string]proto.Message, error) {
	var tree any
	if err := yaml.Unmarshal([]byte(file), &tree); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, nil, err
	}
	all := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(text, all); err != nil {
		return nil, nil, err
	}
	packed := map[string]proto.Message{}
	return all, packed, valid(all, packed)
}

func valid(m proto.Message, packed map[string]proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return err
		}
	}
	return protorange.Range(m.ProtoReflect(), func(values protopath.Values) error {
		value, ok := values.Index(-1).Value.Interface().(protoreflect.Message)
		if !ok {
			return nil
		}
		one, ok := value.Interface().(*anypb.Any)
		if !ok {
			return nil
		}
		inner, err := one.UnmarshalNew()
		if err != nil {
			return err
		}
		packed[string(inner.ProtoReflect().Descriptor().Name())] = inner
		if err := valid(inner, packed); err != nil {
			return err
		}
		return protorange.Break // its bytes are not a message
	})
}

func TestTheDocumentedEnvoy(t *testing.T) {
	file := documented(t)
	all, packed, err := bootstrap(file)
	require.NoError(t, err)
	clusters := map[string]bool{}
	for _, c := range all.GetStaticResources().GetClusters() {
		clusters[c.GetName()] = true
		assert.Equal(t, c.GetName(), c.GetLoadAssignment().GetClusterName())
	}
	manager := packed["HttpConnectionManager"].(*hcmv3.HttpConnectionManager)
	route := manager.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()[0].GetRoute()
	assert.True(t, clusters[route.GetCluster()])
	assert.Zero(t, route.GetTimeout().AsDuration(), "streams last")

	filter := packed["ExternalProcessor"].(*filterv3.ExternalProcessor)
	assert.True(t, clusters[filter.GetGrpcService().GetEnvoyGrpc().GetClusterName()])
	mode := filter.GetProcessingMode()
	assert.Equal(t, []filterv3.ProcessingMode_BodySendMode{inPieces, inPieces}, []filterv3.ProcessingMode_BodySendMode{mode.GetRequestBodyMode(), mode.GetResponseBodyMode()})
	assert.Equal(t, []filterv3.ProcessingMode_HeaderSendMode{filterv3.ProcessingMode_SEND, filterv3.ProcessingMode_SEND},
		[]filterv3.ProcessingMode_HeaderSendMode{mode.GetRequestTrailerMode(), mode.GetResponseTrailerMode()}, "as FULL_DUPLEX_STREAMED demands")

	host := packed["OverrideHost"].(*overridev3.OverrideHost)
	from, to := host.GetOverrideHostSources()[0].GetMetadata(), host.GetSelectedHostKey()
	assert.Contains(t, filter.GetMetadataOptions().GetReceivingNamespaces().GetUntyped(), from.GetKey(), "the picker's word is taken")
	assert.Contains(t, filter.GetMetadataOptions().GetForwardingNamespaces().GetUntyped(), to.GetKey(), "the picker is told who has served")

	// These are the picker's own names: it writes under the first, and what it reads
	// under the second changes its accounts.
	w := newWorld(t, extproc.Config{})
	c := w.talk(t, inPieces)
	m, _ := c.request(chatBody)
	said := m.GetDynamicMetadata().GetFields()[from.GetKey()].GetStructValue().GetFields()[from.GetPath()[0].GetKey()].GetStringValue()
	assert.Equal(t, "10.0.0.1:8000", said)
	c.send(withMetadata(responseHeaders("200", false), to.GetKey(), to.GetPath()[0].GetKey(), "10.0.0.2:8000"))
	c.recv()
	c.send(responseBody(events+done, true))
	c.recv()
	c.ends()
	w.idle(t)
	assert.Equal(t, "a failed, b completed", w.heard.said())
}

// A file with a mistake is rejected: a field, a value or a rule, at the top level or packed.
func TestMistakesInAnEnvoyAreNoticed(t *testing.T) {
	file := documented(t)
	for from, to := range map[string]string{
		"stat_prefix: models":         `stat_prefix: ""`,
		"selected_host_key":           "selected_host",
		"FULL_DUPLEX_STREAMED\n":      "FULL_DUPLEX\n",
		"load_assignment: #":          "load_assignments: #",
		"message_timeout: 5s":         "message_timeout: 5",
		"port_value: 9002":            "port_value: 90020",
		"override_host_sources:":      "override_hosts:",
		"override_host.v3.Over":       "override_host.v4.Over",
		`domains: ["*"]`:              `domains: []`,
		"num_retries: 2":              "num_retries: two",
		"untyped: [envoy.lb]":         "untypes: [envoy.lb]",
		"explicit_http_config":        "explicit_config",
		"connection_keepalive: {inte": "connection_keepalive: {every: 1s, inte",
	} {
		require.Contains(t, file, from)
		_, _, err := bootstrap(strings.Replace(file, from, to, 1))
		assert.Error(t, err, to)
	}
}
