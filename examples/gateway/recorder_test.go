package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func models(t *testing.T, path string) (all []string) {
	t.Helper()
	f := rig.Must(os.Open(path))
	defer f.Close()
	require.NoError(t, recording.Read(f, func(_ int, r *recording.Request) error {
		all = append(all, r.Model)
		return nil
	}))
	return all
}

func someRequest(i int) recording.Request {
	return recording.Request{Time: time.Unix(int64(i), 0).UTC(), Model: fmt.Sprint("m", i), Status: "completed"}
}

// A recording takes at most its configured bytes, in files of whole lines.
func TestRecordingIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	record := func(bytes byteSize, from, to int) { // some 110 bytes each
		r := rig.Must(newRecorder(&recordSettings{File: path, Bytes: bytes, Files: 2}, slog.New(slog.DiscardHandler)))
		for i := from; i <= to; i++ {
			r.record(someRequest(i))
		}
		require.NoError(t, r.close())
		assert.Zero(t, r.lost.Load())
	}
	record(300, 0, 9) // two per file
	assert.Equal(t, []string{"m8", "m9"}, models(t, path))
	assert.Equal(t, []string{"m6", "m7"}, models(t, path+".1"))
	assert.Equal(t, []string{"m4", "m5"}, models(t, path+".2"))
	assert.NoFileExists(t, path+".3")

	// Another process continues where this one has ended, after half a line from
	// one that was killed.
	writeFile(t, path, string(rig.Must(os.ReadFile(path)))+`{"time":"20`)
	record(400, 10, 10)
	assert.Equal(t, []string{"m8", "m9", "m10"}, models(t, path))

	// Existing files count: there is no room for a fourth.
	record(400, 11, 11)
	assert.Equal(t, []string{"m11"}, models(t, path))
	assert.Equal(t, []string{"m8", "m9", "m10"}, models(t, path+".1"))
}

func TestEndOfHalfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	for text, want := range map[string]string{
		"a\nb\n": "a\nb\n", "a\nb": "a\n", "b": "", "a\n" + strings.Repeat("b", 200<<10): "a\n", strings.Repeat("b", 200<<10): "",
	} {
		writeFile(t, path, text)
		require.NoError(t, endLine(path, int64(len(text))))
		assert.Equal(t, want, string(rig.Must(os.ReadFile(path))))
	}
}

// A full disk costs records, is reported once a minute, and never delays requests.
func TestAFullDiskCostsRecords(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	var logged bytes.Buffer
	r := rig.Must(newRecorder(&recordSettings{File: "/dev/full"}, slog.New(slog.NewTextHandler(&logged, nil))))
	const many = 10 * recorderQueue
	for i := range many {
		r.record(someRequest(i)) // returns, whatever the disk does
	}
	_ = r.close()
	assert.EqualValues(t, many, r.lost.Load())
	assert.Equal(t, 1, strings.Count(logged.String(), "a record is lost"), logged.String())
	assert.Contains(t, logged.String(), "no space left on device")
}

// What waits for a slow disk is bounded in bytes too.
func TestLargeRecordsDoNotWait(t *testing.T) {
	r := &recorder{queue: make(chan recording.Request, recorderQueue)} // without a writer
	large := recording.Request{Blocks: make([]recording.Hash, 1<<20), Prompt: &recording.Prompt{Messages: make([]recording.Piece, 1<<15)}}
	for range recorderQueue {
		r.record(large)
	}
	assert.Len(t, r.queue, 4) // of some 13.6 MB
	assert.EqualValues(t, recorderQueue-4, r.lost.Load())
	assert.Equal(t, 4*sizeOf(&large), r.waiting.Load())
}

// A record that has been written, or has failed, gives its place back.
func TestWrittenRecordsDoNotWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	r := rig.Must(newRecorder(&recordSettings{File: path}, slog.New(slog.DiscardHandler)))
	one := recording.Request{Blocks: make([]recording.Hash, 100)}
	for range 5 {
		for range 10 {
			r.record(one)
		}
		require.Eventually(t, func() bool { return r.waiting.Load() == 0 }, 30*time.Second, time.Millisecond)
	}
	require.NoError(t, r.close())
	require.Zero(t, r.lost.Load())
	require.Equal(t, 50, strings.Count(string(rig.Must(os.ReadFile(path))), "\n"))
	r.waiting.Add(sizeOf(&one))
	r.write(one) // to a closed file
	require.EqualValues(t, 1, r.lost.Load())
	require.Zero(t, r.waiting.Load())
}

// However many files may be kept, only those that are there are moved, and none beyond a gap.
func TestRotationOfManyFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	writeFile(t, path+".3", "old\n")
	r := &recorder{path: path, bytes: 1, files: math.MaxInt, log: slog.New(slog.DiscardHandler)}
	rotated := make(chan error, 4)
	go func() {
		for n := range cap(rotated) {
			rotated <- r.append([]byte(fmt.Sprintf("%d\n", n)))
		}
	}()
	for range cap(rotated) {
		require.NoError(t, soon(t, rotated, "it moves files that are not there"))
	}
	require.NoError(t, r.file.Close())
	for name, want := range map[string]string{"": "3\n", ".1": "2\n", ".2": "1\n", ".3": "0\n", ".4": "old\n"} {
		require.Equal(t, want, string(rig.Must(os.ReadFile(path+name))), name)
	}
}

// Where it can't be rotated, the recording does not grow either.
func TestARotationThatFailsCostsRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	require.NoError(t, os.MkdirAll(filepath.Join(path+".1", "taken"), 0o700))
	r := &recorder{path: path, bytes: 10, files: 1, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, r.append([]byte("12345678\n")))
	for range 10 {
		require.Error(t, r.append([]byte("12345678\n")))
	}
	require.NoError(t, os.RemoveAll(path+".1"))
	require.NoError(t, r.append([]byte("new\n")))
	require.Equal(t, "new\n", string(rig.Must(os.ReadFile(path))))
	require.NoError(t, r.file.Close())
}
