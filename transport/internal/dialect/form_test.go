package dialect

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
)

// The model of a form stands before or after the file, and the last one counts.
func TestFormField(t *testing.T) {
	const model = "Content-Disposition: form-data; name=\"model\"\r\n\r\n"
	file := "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" + strings.Repeat("\x00\xff\r\n--", 100)
	header := http.Header{"Content-Type": {"multipart/form-data; boundary=x"}}
	for body, want := range map[string]string{
		"--x\r\n" + model + "m\r\n--x--": "m",
		"--x\r\n" + model + "a\r\n--x\r\n" + file + "\r\n--x\r\n" + model + "m\r\n--x--":        "m",
		"--x\r\n" + model + "m\r\n--x\r\n" + file + "\r\n--x--":                                 "m",
		"--x\r\n" + model + "a\r\n\r\nb\r\n--x--":                                               "a\r\n\r\nb",
		"--x\r\n" + model + "\r\n--x--":                                                         "",
		"--x\r\n" + model + strings.Repeat("m", 1<<20) + "\r\n--x--":                            strings.Repeat("m", maxName+1), // to be refused
		"--x\r\nContent-Disposition: form-data; name=\"models\"\r\n\r\nm\r\n--x--":              "",
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
		c := rig.Must(parse(other, header, []byte(body), manyItems))
		assert.Equal(t, want, c.model, "%.100q", body)
		assert.Equal(t, other, c.api)
	}
	for kind, want := range map[string]string{
		"multipart/form-data; boundary=x": "x", `Multipart/Form-Data; charset=a; boundary="a b"`: "a b",
		"multipart/form-data; boundary====1===": "===1===", "multipart/form-data; boundary=x; charset": "x", "multipart/form-data": "", "multipart/mixed; boundary=x": "", "application/json": "", "": "", "multipart/form-data; boundary=x; boundary=y": "",
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
