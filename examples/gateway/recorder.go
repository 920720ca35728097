package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick/transport/recording"
)

// recorder keeps a recording of limited size: the newest records in FILE, earlier
// ones in FILE.1 and so on. It writes in a goroutine of its own. If the disk is slow
// or full, records are dropped and counted; requests never wait for it.
type recorder struct {
	path  string
	bytes int64 // per file
	files int   // without the newest
	log   *slog.Logger

	queue   chan recording.Request
	closed  sync.Once
	quit    chan struct{}
	ended   chan struct{}
	lost    atomic.Uint64
	waiting atomic.Int64 // in bytes

	closing error // error of the end

	file    *os.File
	size    int64
	failing time.Time // when a failure was last logged
}

// How many records may wait for the disk, and of how many bytes in total. The
// record of a prompt of 100,000 tokens has some 100 KB; clients can make larger
// ones.
const (
	recorderQueue = 256
	recorderBytes = 64 << 20
)

// sizeOf estimates the memory of a record.
func sizeOf(r *recording.Request) int64 {
	n := 512 + 8*len(r.Blocks)
	if r.Prompt != nil {
		for _, pieces := range [...][]recording.Piece{r.Prompt.Tools, r.Prompt.Messages} {
			for i := range pieces {
				n += 160 + 40*len(pieces[i].Values) + 4*len(pieces[i].Shape) + len(pieces[i].Text)
			}
		}
	}
	return int64(n)
}

func newRecorder(s *recordSettings, logger *slog.Logger) (*recorder, error) {
	r := &recorder{
		path: s.File, bytes: int64(cmp.Or(s.Bytes, defaultRecordBytes)), files: cmp.Or(s.Files, defaultRecordFiles), log: logger,
		queue: make(chan recording.Request, recorderQueue), quit: make(chan struct{}), ended: make(chan struct{}),
	}
	if err := r.open(); err != nil { // an error at the start is a configuration error
		return nil, err
	}
	go r.run()
	return r, nil
}

// record queues a record. It suits transport.Config.Record.
func (r *recorder) record(request recording.Request) {
	size := sizeOf(&request)
	if r.waiting.Add(size) <= recorderBytes {
		select {
		case r.queue <- request:
			return
		default:
		}
	}
	r.waiting.Add(-size)
	r.lost.Add(1)
}

// close writes the queued records. None may follow.
func (r *recorder) close() error {
	r.closed.Do(func() {
		close(r.quit)
		<-r.ended
		if r.file != nil {
			r.closing = r.file.Close()
		}
	})
	return r.closing
}

func (r *recorder) run() {
	defer close(r.ended)
	for {
		select {
		case request := <-r.queue:
			r.write(request)
		case <-r.quit:
			for len(r.queue) > 0 {
				r.write(<-r.queue)
			}
			return
		}
	}
}

// write appends a line, completely or not at all.
func (r *recorder) write(request recording.Request) {
	defer r.waiting.Add(-sizeOf(&request))
	line, err := json.Marshal(request)
	if err == nil {
		err = r.append(append(line, '\n'))
	}
	if err == nil {
		return
	}
	lost := r.lost.Add(1)
	if now := time.Now(); now.Sub(r.failing) >= time.Minute {
		r.failing = now
		r.log.Error("a record is lost", "error", err, "lost", lost)
	}
}

func (r *recorder) append(line []byte) error {
	for r.file == nil || r.size > 0 && r.size+int64(len(line)) > r.bytes {
		next := r.rotate
		if r.file == nil {
			next = r.open
		}
		if err := next(); err != nil {
			return err
		}
	}
	n, err := r.file.Write(line)
	if err == nil {
		r.size += int64(n)
		return nil
	}
	// Half a line would make everything after it unreadable.
	if undo := r.file.Truncate(r.size); undo != nil {
		err = errors.Join(err, undo, r.file.Close())
		r.file = nil
	}
	return err
}

// open opens the existing file for appending.
func (r *recorder) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if info.Mode().IsRegular() && info.Size() > 0 {
		if err := endLine(r.path, info.Size()); err != nil {
			return errors.Join(err, f.Close())
		}
		if info, err = f.Stat(); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	r.file, r.size = f, info.Size()
	return nil
}

// endLine removes an incomplete last line, which a killed process leaves behind.
func endLine(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, size-1); err != nil || last[0] == '\n' {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	return f.Truncate(int64(bytes.LastIndexByte(text, '\n') + 1))
}

// rotate renames the files up to the first free number, each to the next, dropping the oldest
// if none is free.
func (r *recorder) rotate() error {
	err := r.file.Close()
	r.file = nil
	name := func(i int) string { return r.path + "." + strconv.Itoa(i) }
	free := 1
	for ; free < r.files; free++ {
		if _, e := os.Lstat(name(free)); errors.Is(e, os.ErrNotExist) {
			break
		}
	}
	for i := free; i > 1; i-- {
		if e := os.Rename(name(i-1), name(i)); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if e := os.Rename(r.path, name(1)); e != nil {
		return errors.Join(err, fmt.Errorf("the recording is not rotated: %w", e))
	}
	return err
}
