package prefix_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hashOf is the hash of a text of one block under a key.
func hashOf(k prefix.Key) uint64 {
	return prefix.AppendText(nil, prefix.Scope{Key: k}.Seed(), strings.Repeat("x", prefix.BlockBytes))[0]
}

func TestKeyText(t *testing.T) {
	text := "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	k := rig.Must(prefix.ParseKey(text))
	assert.Equal(t, text, k.Reveal())
	assert.Equal(t, hashOf(k), hashOf(rig.Must(prefix.ParseKey(strings.ToUpper(text)))))

	drawn := prefix.NewKey()
	shared := rig.Must(prefix.ParseKey(drawn.Reveal()))
	assert.Equal(t, hashOf(drawn), hashOf(shared))
	assert.Equal(t, drawn.String(), shared.String())

	for i := range 32 { // every byte counts
		b, _ := hex.DecodeString(text)
		b[i] ^= 0x80
		other := rig.Must(prefix.ParseKey(hex.EncodeToString(b)))
		assert.NotEqual(t, hashOf(k), hashOf(other))
		assert.NotEqual(t, k.String(), other.String())
	}
}

func TestKeyRefused(t *testing.T) {
	for _, text := range []string{"", "secret", strings.Repeat("5e", 31), strings.Repeat("5e", 33), strings.Repeat("5e", 31) + "5", strings.Repeat("5e", 31) + "5x"} {
		_, err := prefix.ParseKey(text)
		assert.Equal(t, "prefix.Key", rig.Field(nil, err), text)
		if text != "" {
			assert.NotContains(t, err.Error(), text[:6], "an error goes into logs")
		}
	}
}

// Without a key, the process has one that nobody outside can know.
func TestKeyOfTheProcess(t *testing.T) {
	var zero prefix.Key
	assert.Equal(t, hashOf(zero), hashOf(prefix.Key{}))
	assert.Equal(t, hashOf(zero), hashOf(rig.Must(prefix.ParseKey(zero.Reveal()))))
	all := []prefix.Key{zero, rig.Must(prefix.ParseKey(strings.Repeat("0", 64))), prefix.NewKey(), prefix.NewKey()}
	for i := range all {
		for j := range i {
			assert.NotEqual(t, hashOf(all[i]), hashOf(all[j]), "%d, %d", i, j)
			assert.NotEqual(t, all[i].String(), all[j].String())
		}
	}
}

func TestKeyIsNotPrintedByAccident(t *testing.T) {
	key := prefix.NewKey()
	secret, _ := hex.DecodeString(key.Reveal())
	scope := prefix.Scope{Key: key, Model: "m"}
	values := []any{
		key, &key, scope, &scope, scope.Seed(), []prefix.Key{key}, map[string]prefix.Scope{"": scope},
		struct{ inside prefix.Scope }{scope}, &struct {
			key  prefix.Key
			seed prefix.Seed
		}{key, scope.Seed()},
	}
	looksOf := func(secret []byte) (all []string) {
		all = append(all, fmt.Sprintf("%x", secret[:4]), fmt.Sprintf("%X", secret[:4]), fmt.Sprintf("% x", secret[:4]))
		all = append(all, strings.Trim(fmt.Sprint(secret[:4]), "[]"))
		return append(all, strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", secret[:4]), "[]byte{"), "}"))
	}
	for _, v := range values {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			printed := fmt.Sprintf(format, v)
			for _, look := range looksOf(secret) {
				require.NotContains(t, printed, look, "%s of %T", format, v)
			}
		}
		require.NotContains(t, string(rig.Must(json.Marshal(v))), key.Reveal()[:8])
	}
	assert.Regexp(t, "^key [0-9a-f]{8}$", key.String())
	assert.NotContains(t, key.Reveal(), strings.TrimPrefix(key.String(), "key "))
}
