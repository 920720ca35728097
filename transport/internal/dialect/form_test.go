package dialect

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/internal/lab/rig"
)

// form writes a form as clients do: a file of the given length, with fields before
// and after it.
func form(t testing.TB, before, after [][2]string, file string) (body []byte, header http.Header) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	write := func(fields [][2]string) {
		for _, f := range fields {
			require.NoError(t, w.WriteField(f[0], f[1]))
		}
	}
	write(before)
	part, err := w.CreateFormFile("file", "speech.wav")
	require.NoError(t, err)
	_, err = part.Write([]byte(file))
	require.NoError(t, err)
	write(after)
	require.NoError(t, w.Close())
	return b.Bytes(), http.Header{"Content-Type": {w.FormDataContentType()}}
}

func TestTheModelOfAFormIsRead(t *testing.T) {
	file := strings.Repeat("\x00\xff\r\n--", 100)
	for name, tc := range map[string]struct {
		before, after [][2]string
		want          string
	}{
		"before the file":  {[][2]string{{"model", "whisper"}}, nil, "whisper"},
		"after the file":   {[][2]string{{"language", "en"}}, [][2]string{{"prompt", "model"}, {"model", "whisper"}}, "whisper"},
		"the last counts":  {[][2]string{{"model", "a"}}, [][2]string{{"model", "b"}}, "b"},
		"none":             {[][2]string{{"models", "a"}}, nil, ""},
		"empty":            {[][2]string{{"model", ""}}, nil, ""},
		"of several lines": {[][2]string{{"model", "a\r\n\r\nb"}}, nil, "a\r\n\r\nb"},
	} {
		body, header := form(t, tc.before, tc.after, file)
		c, err := parse(other, header, body, manyItems)
		require.NoError(t, err)
		assert.Equal(t, tc.want, c.model, name)
		assert.Equal(t, other, c.api)
	}
	body, header := form(t, [][2]string{{"model", strings.Repeat("m", 1<<20)}}, nil, "")
	c, err := parse(other, header, body, manyItems)
	require.NoError(t, err)
	assert.Len(t, c.model, maxName+1, "enough to see that it is too long")
}

func TestFormField(t *testing.T) {
	const model = "Content-Disposition: form-data; name=\"model\"\r\n\r\n"
	for body, want := range map[string]string{
		"--x\r\n" + model + "m\r\n--x--":                                                        "m",
		"text before\r\n--x\r\n" + model + "m\r\n--x--\r\ntext after":                           "m",
		"--x \t\r\n" + model + "m\r\n--x--":                                                     "m",
		"--x\r\nContent-Type: text/plain\r\ncontent-disposition: " + model[21:] + "m\r\n--x--":  "m",
		"--x\r\n" + model + "m\r\n--x\r\n\r\nno name\r\n--x--":                                  "m",
		"--x\r\n" + model + "\r\n--y\r\n--x--":                                                  "\r\n--y",
		"--x\r\n" + model + "m":                                                                 "",
		"--x\r\n" + model:                                                                       "",
		"--x--\r\n--x\r\n" + model + "m\r\n--x--":                                               "",
		"x--x\r\n" + model + "m\r\n--x--":                                                       "",
		"--x\r\n" + strings.Repeat("A: b\r\n", 20000) + model + "m\r\n--x--":                    "",
		"--x\r\nContent-Disposition: attachment; name=\"model\"\r\n\r\nm\r\n--x--":              "",
		"--x\r\nContent-Disposition: form-data; name=\r\n\r\nm\r\n--x--":                        "",
		strings.Repeat("--x\r\n\r\n\r\nv\r\n", maxFormParts) + "--x\r\n" + model + "m\r\n--x--": "",
		"": "", "--x": "", "--x\r\n": "", "--": "", "\r\n--x": "",
	} {
		assert.Equal(t, want, formField([]byte(body), "x", "model"), "%.100q", body)
	}
	for kind, want := range map[string]string{
		"multipart/form-data; boundary=x": "x", `Multipart/Form-Data; charset=a; boundary="a b"`: "a b",
		"multipart/form-data": "", "multipart/mixed; boundary=x": "", "application/json": "", "": "", "multipart/form-data; boundary=x; boundary=y": "",
	} {
		assert.Equal(t, want, formBoundary(http.Header{"Content-Type": {kind}}), kind)
	}
}

// Whatever a form contains, it is read once, in milliseconds. Quadratic work
// would take minutes.
func TestFormsOfMostlyBordersAreReadOnce(t *testing.T) {
	const size = 4 << 20
	for _, unit := range []string{"\r\n--", "\r\n--x\r\n", "\r\n--x\r\n\r\n", "\r\n\r\n", "--x", "\r\n--x\r\nContent-Disposition: form-data; name=model\r\n\r\n"} {
		body := []byte("--x\r\n" + strings.Repeat(unit, size/len(unit)) + "\r\n--x--")
		const longest = 5 * time.Second
		assert.Less(t, rig.LeastTime(10, longest, func() { formField(body, "x", "model") }), longest, "%q", unit)
	}
}
