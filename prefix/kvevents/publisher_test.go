package kvevents

import (
	"context"
	"encoding/binary"
	"io"
	"log"
	"net"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// publisher plays vLLM's side (ZmqEventPublisher) over real sockets of another
// project: a PUB socket, and a ROUTER socket for replays.
type publisher struct {
	t           testing.TB
	ctx         context.Context
	pub, router zmq4.Socket
	stop        context.CancelFunc
	topic       string
	topicBack   bool // replies include the topic, as since vllm-project/vllm#45177
	answered    sync.WaitGroup

	mu sync.Mutex
	batches
}

// batches are those that an engine has published, of which it keeps the last for replays.
type batches struct {
	next   uint64
	buffer []published
	keep   int
}

type published struct {
	number  uint64
	payload []byte
}

func (b *batches) add(payload []byte) published {
	p := published{b.next, payload}
	b.next++
	if b.buffer = append(b.buffer, p); len(b.buffer) > b.keep {
		b.buffer = b.buffer[1:]
	}
	return p
}

func (b *batches) replay(from uint64, each func(uint64, []byte) bool) error {
	for _, p := range b.buffer {
		if p.number >= from && !each(p.number, p.payload) {
			break
		}
	}
	return nil
}

var quiet = zmq4.WithLogger(log.New(io.Discard, "", 0))

func newPublisher(t testing.TB, topicBack bool, keep int) *publisher {
	ctx, stop := context.WithCancel(context.Background())
	p := &publisher{
		t: t, ctx: ctx, stop: stop, topic: "kv@pod@model", topicBack: topicBack, batches: batches{keep: keep},
		pub: zmq4.NewPub(ctx, quiet), router: zmq4.NewRouter(ctx, quiet),
	}
	require.NoError(t, p.pub.Listen("tcp://127.0.0.1:0"))
	require.NoError(t, p.router.Listen("tcp://127.0.0.1:0"))
	p.answered.Go(func() {
		for ctx.Err() == nil {
			m, err := p.router.Recv()
			if err != nil {
				if ctx.Err() == nil {
					continue // a client has left
				}
				return
			}
			p.answer(m.Frames)
		}
	})
	t.Cleanup(p.kill)
	return p
}

// kill ends the process: its connections break, and its batches are gone.
func (p *publisher) kill() {
	p.stop()
	_ = p.pub.Close()
	_ = p.router.Close()
	p.answered.Wait()
}

func (p *publisher) answer(request [][]byte) {
	if len(request) != 3 || len(request[1]) != 0 || len(request[2]) != 8 {
		p.t.Errorf("a replay is asked for in frames %q", request)
		return
	}
	from := binary.BigEndian.Uint64(request[2])
	send := func(number uint64, payload []byte) bool {
		frames := [][]byte{request[0], {}}
		if p.topicBack {
			frames = append(frames, []byte(p.topic))
		}
		_ = p.router.SendMulti(zmq4.NewMsgFrom(append(frames, binary.BigEndian.AppendUint64(nil, number), payload)...))
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.replay(from, send)
	send(1<<64-1, nil)
}

// publish sends a batch of events, or loses it.
func (p *publisher) publish(lose bool, events ...any) {
	payload, err := msgpack.Marshal([]any{1.5, events, 0})
	require.NoError(p.t, err)
	p.publishRaw(lose, payload)
}

func (p *publisher) publishRaw(lose bool, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.add(payload)
	if !lose {
		require.NoError(p.t, p.pub.SendMulti(zmq4.NewMsgFrom([]byte(p.topic), binary.BigEndian.AppendUint64(nil, b.number), payload)))
	}
}

// engine is the address of the current publisher, like the name of a service
// whose process changes.
type engine struct {
	mu  sync.Mutex
	now *publisher
}

func (e *engine) is(p *publisher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = p
}

// dial is a Config.Dial for the addresses events:1 and replay:1.
func (e *engine) dial(ctx context.Context, network, address string) (net.Conn, error) {
	e.mu.Lock()
	p := e.now
	e.mu.Unlock()
	if p == nil {
		return nil, &net.OpError{Op: "dial", Err: io.ErrUnexpectedEOF}
	}
	to := p.pub.Addr()
	if address == "replay:1" {
		to = p.router.Addr()
	}
	return new(net.Dialer).DialContext(ctx, network, to.String())
}

// store is a stored event as vLLM has sent it since 0.24.
func store(parent any, first int, hashes ...int) map[string]any {
	tokens := make([]int, 16*len(hashes))
	for i := range tokens {
		tokens[i] = first + i
	}
	return map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": 16,
		"lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": make([]any, len(hashes)), "group_idx": 0, "kv_cache_spec_kind": "full_attention",
	}
}

func remove(hashes ...int) map[string]any {
	return map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
}

// listenAgain opens the PUB socket at another address; numbers continue.
func (p *publisher) listenAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pub = zmq4.NewPub(p.ctx, quiet)
	require.NoError(p.t, p.pub.Listen("tcp://127.0.0.1:0"))
}
