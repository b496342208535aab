package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// rsockets are byte streams over RDMA-CM, as rdma-core describes them in its
// librdmacm/docs/rsocket. Each side has a receive buffer of two halves. It WRITEs the address
// of each half that the peer may fill into a list at the peer, the target SGL. Data arrive as
// WRITEs with immediate data: the upper 3 bits are the kind of message, the lower 29 the
// number of bytes received, or how many messages may be sent in total. The halves are filled
// one after the other, so the received data form a ring.
const (
	rsData  = 0 << 29 // bytes
	rsSGL   = 4 << 29 // number of messages that may be sent; the list may have changed, too
	rsIOMap = 6 << 29 // index of an entry
	rsCtrl  = 7 << 29 // one of those below

	rsDisconnect = 0
	rsShutdown   = 2

	rsNet     = 1 // flags: lists are big-endian
	rsHasIO   = 2 // there is room for mappings
	rsCredits = 384
	rsHalf    = 64 << 10
	rsEntry   = 16 // an entry of a list: address, key, length
	rsMapping = 24 // an offset and an entry
	rsEntries = 2
)

// rsock is a connection of rsockets.
type rsock struct {
	ctx  context.Context
	ep   *roce.Endpoint
	c    *roce.Conn
	list *roce.MR // where we may write, set by the peer; then the peer's mapping
	ring *roce.MR // received data

	order binary.ByteOrder // of the peer's list
	peer  roce.Remote      // that list; Len counts entries

	mu      sync.Mutex
	changed sync.Cond
	sent    uint16 // messages
	limit   uint16 // of messages, in total
	target  int    // index of the entry that is being filled
	came    []int  // sizes in bytes of messages received and not read
	read    uint16 // messages
	granted uint16 // when read reaches it, new credits are sent to the peer
	at      int    // offset in the ring of the next byte to read
	free    int    // bytes read and not offered again
	offered int    // offset of the next half to offer
	entry   int    // of the peer's list, to be written next
	eof     bool
	err     error
}

// newRsock creates what a connection needs, and the private data that describe it.
func (t *cmTool) newRsock(ctx context.Context) (*rsock, []byte, error) {
	s := &rsock{ctx: ctx, ep: t.ep, free: rsHalf, offered: rsHalf, entry: 1, granted: rsCredits / 2}
	s.changed.L = &s.mu
	var err, err2 error
	s.list, err = t.ep.Register(make([]byte, rsEntries*rsEntry+rsMapping), qp.RemoteWrite)
	s.ring, err2 = t.ep.Register(make([]byte, 2*rsHalf), qp.RemoteWrite)
	if err = errors.Join(err, err2); err != nil {
		return nil, nil, err
	}
	be := binary.BigEndian
	b := be.AppendUint16([]byte{1, rsHasIO}, rsCredits)
	b = append(b, 0, 0, 0, 1) // one mapping
	for _, r := range []roce.Remote{{Addr: s.list.Addr(), RKey: s.list.RKey(), Len: rsEntries}, {Addr: s.ring.Addr(), RKey: s.ring.RKey(), Len: rsHalf}} {
		b = appendEntry(b, be, r)
	}
	return s, b, nil
}

func appendEntry(b []byte, order binary.ByteOrder, r roce.Remote) []byte {
	var e [rsEntry]byte
	order.PutUint64(e[:], r.Addr)
	order.PutUint32(e[8:], r.RKey)
	order.PutUint32(e[12:], r.Len)
	return append(b, e[:]...)
}

func entryOf(b []byte, order binary.ByteOrder) roce.Remote {
	return roce.Remote{Addr: order.Uint64(b), RKey: order.Uint32(b[8:]), Len: order.Uint32(b[12:])}
}

// start decodes the peer's private data, and starts to receive.
func (s *rsock) start(c *roce.Conn) error {
	b := c.PrivateData()
	if len(b) < 8+2*rsEntry || b[0] != 1 {
		return errors.New("the peer does not speak the protocol of rsockets")
	}
	s.c, s.order = c, binary.LittleEndian
	if b[1]&rsNet != 0 {
		s.order = binary.BigEndian
	}
	s.limit = binary.BigEndian.Uint16(b[2:])
	s.peer = entryOf(b[8:], binary.BigEndian)
	if s.peer.Len < rsEntries {
		return fmt.Errorf("the peer's list has %d entries, want %d or more", s.peer.Len, rsEntries)
	}
	first := appendEntry(nil, binary.LittleEndian, entryOf(b[8+rsEntry:], binary.BigEndian))
	s.ep.Do(func(time.Time, *softnic.Port) { copy(s.list.Bytes(), first) })
	go s.receive()
	return s.offer()
}

// receive receives messages until the connection ends.
func (s *rsock) receive() {
	for {
		m, err := s.c.RecvMessage(s.ctx, nil)
		s.mu.Lock()
		n := m.Imm & (1<<29 - 1)
		switch op := m.Imm &^ (1<<29 - 1); {
		case err != nil || !m.HasImm:
			s.eof = true
			if s.err = err; err == nil {
				s.err = errors.New("the peer sent no message of rsockets")
			}
		case op == rsData:
			s.came = append(s.came, int(n))
		case op == rsSGL:
			s.limit = uint16(n)
		case op == rsCtrl && n == rsDisconnect:
			s.eof, s.err = true, io.ErrClosedPipe
		case op == rsCtrl && n == rsShutdown:
			s.eof = true
		}
		over := s.err != nil
		s.changed.Broadcast()
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// Read implements io.Reader.
func (s *rsock) Read(b []byte) (int, error) {
	s.mu.Lock()
	for len(s.came) == 0 && !s.eof {
		s.changed.Wait()
	}
	if len(s.came) == 0 {
		err := s.err
		s.mu.Unlock()
		if err == nil || err == io.ErrClosedPipe {
			err = io.EOF
		}
		return 0, err
	}
	n := min(len(b), s.came[0], 2*rsHalf-s.at)
	s.ep.Do(func(time.Time, *softnic.Port) { copy(b[:n], s.ring.Bytes()[s.at:]) })
	s.at = (s.at + n) % (2 * rsHalf)
	s.free += n
	if s.came[0] -= n; s.came[0] == 0 {
		s.came = s.came[1:]
		s.read++
	}
	s.mu.Unlock()
	if err := s.offer(); err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	return n, nil
}

// offer sends the peer the address of a half that it may fill again, and how many messages it
// may send.
func (s *rsock) offer() error {
	s.mu.Lock()
	half := s.free >= rsHalf
	if s.err != nil || !half && int16(s.read-s.granted) < 0 {
		s.mu.Unlock()
		return nil
	}
	s.granted = s.read + rsCredits/2
	imm := rsSGL | uint32(s.read+rsCredits)
	var to roce.Remote
	var b []byte
	if half {
		to = roce.Remote{Addr: s.peer.Addr + uint64(s.entry*rsEntry), RKey: s.peer.RKey, Len: rsEntry}
		b = appendEntry(nil, s.order, roce.Remote{Addr: s.ring.Addr() + uint64(s.offered), RKey: s.ring.RKey(), Len: rsHalf})
		s.free -= rsHalf
		s.offered = (s.offered + rsHalf) % (2 * rsHalf)
		s.entry = (s.entry + 1) % int(s.peer.Len)
	}
	s.mu.Unlock()
	return s.c.WriteRemoteImm(s.ctx, to, b, imm)
}

// Write implements io.Writer.
func (s *rsock) Write(b []byte) (n int, err error) {
	for len(b) != 0 {
		to, err := s.room(len(b))
		if err != nil {
			return n, err
		}
		k := int(to.Len)
		if err := s.c.WriteRemoteImm(s.ctx, to, b[:k], rsData|to.Len); err != nil {
			return n, err
		}
		n, b = n+k, b[k:]
	}
	return n, nil
}

// room waits until up to n bytes may be written at the peer; n is 0 for a message without
// data.
func (s *rsock) room(n int) (to roce.Remote, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil {
		if s.sent != s.limit {
			if n != 0 {
				to = s.take(n)
			}
			if n == 0 || to.Len != 0 {
				s.sent++
				return to, nil
			}
		}
		s.changed.Wait()
	}
	return to, s.err
}

// take removes up to n bytes from the entry that is being filled.
func (s *rsock) take(n int) (to roce.Remote) {
	s.ep.Do(func(time.Time, *softnic.Port) {
		b := s.list.Bytes()[s.target*rsEntry:][:rsEntry]
		to = entryOf(b, binary.LittleEndian)
		rest := to
		to.Len = min(to.Len, uint32(n))
		rest.Addr, rest.Len = rest.Addr+uint64(to.Len), rest.Len-to.Len
		copy(b, appendEntry(nil, binary.LittleEndian, rest))
		if to.Len != 0 && rest.Len == 0 {
			s.target = (s.target + 1) % rsEntries
		}
	})
	return to
}

// close ends the stream, and waits up to five seconds for the peer to end it too.
func (s *rsock) close() {
	_ = s.c.WriteRemoteImm(s.ctx, roce.Remote{}, nil, rsCtrl|rsDisconnect) // the peer may have disconnected already
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		over := s.err != nil
		s.mu.Unlock()
		if over {
			break
		}
	}
	s.c.Close()
}

// share lets the peer write to a region directly, as riomap does.
func (s *rsock) share(mr *roce.MR) error {
	if _, err := s.room(0); err != nil {
		return err
	}
	b := appendEntry(make([]byte, 8), s.order, mr.Remote()) // at offset 0
	to := roce.Remote{Addr: s.peer.Addr + uint64(s.peer.Len)*rsEntry, RKey: s.peer.RKey, Len: rsMapping}
	return s.c.WriteRemoteImm(s.ctx, to, b, rsIOMap) // entry 0
}

// shared returns the region that the peer shares, or an error if it has shared none.
func (s *rsock) shared() (r roce.Remote, err error) {
	s.ep.Do(func(time.Time, *softnic.Port) { r = entryOf(s.list.Bytes()[rsEntries*rsEntry+8:], binary.LittleEndian) })
	if r.Len == 0 {
		err = errors.New("the peer has mapped no memory (riomap)")
	}
	return r, err
}

// rsockets are rstream, riostream and rcopy.
func (t *cmTool) rsockets(ctx context.Context) error {
	s, private, err := t.newRsock(ctx)
	if err != nil {
		return err
	}
	cfg := t.config()
	cfg.RecvDepth, cfg.RecvSize, cfg.PrivateData = rsCredits+8, 16, private
	var c *roce.Conn
	if t.to != "" {
		c, err = t.ep.Dial(ctx, t.to, &cfg)
	} else {
		var l *roce.Listener
		if l, err = t.ep.Listen(ctx, ":"+strconv.Itoa(t.port), &roce.ListenConfig{ConnConfig: cfg}); err != nil {
			return err
		}
		defer l.Close()
		c, err = l.Accept(ctx)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	t.conns = append(t.conns, c)
	fmt.Fprintf(t.out, "connected: %v, QP %#06x\n", c.RemoteAddr().Addr(), c.QP())
	if err := s.start(c); err != nil {
		return err
	}
	switch {
	case t.o.cm == "rstream":
		err = t.rstream(s)
	case t.o.cm == "riostream":
		err = t.riostream(s)
	case t.to != "":
		err = t.rcopyClient(s)
	default:
		err = t.rcopyServer(s)
	}
	if err == nil {
		s.close()
	}
	return err
}

// count generates the bytes that rstream and riostream send when they verify data: each byte
// is one more than the one before, in each direction.
type count byte

func (c *count) fill(b []byte) {
	for i := range b {
		b[i] = byte(*c)
		*c++
	}
}

func (c *count) is(b []byte) bool {
	ok := true
	for i := range b {
		ok = ok && b[i] == byte(*c)
		*c++
	}
	return ok
}

// said returns the text that tells whether the received data were as expected; only a peer
// that verifies sends such data.
func said(ok bool) string {
	if ok {
		return "verified"
	}
	return "not verified: the peer sends no pattern (-T v)"
}

// rstream sends 16 bytes each way, then -n times -size bytes from the client, and as many
// from the server.
func (t *cmTool) rstream(s *rsock) error {
	var out, in count
	good := true
	send := func(b []byte) error {
		out.fill(b)
		_, err := s.Write(b)
		return err
	}
	recv := func(b []byte) error {
		_, err := io.ReadFull(s, b)
		good = in.is(b) && good
		return err
	}
	first, second := send, recv
	if t.to == "" {
		first, second = recv, send
	}
	start := time.Now()
	for _, r := range []struct{ times, size int }{{1, 16}, {t.o.n, t.size()}} {
		b := make([]byte, r.size)
		for k, step := range []func([]byte) error{first, second} {
			for i := range r.times {
				err := step(b)
				if k == 1 && i == t.o.n-1 && t.over(err) {
					err = nil
				}
				if err != nil {
					return fmt.Errorf("after %d of %d transfers: %w", i, r.times, err)
				}
			}
		}
	}
	t.rate(2*t.o.n, t.size(), start, said(good))
	return nil
}

// over reports whether the error of a server's last message means that the client has
// received it and has ended the connection: the acknowledgement may be lost then.
func (t *cmTool) over(err error) bool { return t.to == "" && errors.Is(err, io.EOF) }

func (t *cmTool) rate(n, size int, start time.Time, what string) {
	d := time.Since(start)
	fmt.Fprintf(t.out, "%d transfers of %d bytes in %.2f seconds = %.2f Mbit/s, %s\n", n, size, d.Seconds(), float64(n*size)*8/d.Seconds()/1e6, what)
}

// riostream exchanges mappings, then the client WRITEs -n times into the server's memory, and
// then the server into the client's. The last byte of the last WRITE is a number.
func (t *cmTool) riostream(s *rsock) error {
	size := t.size()
	mr, err := t.ep.Register(bytes.Repeat([]byte{0xff}, size), qp.RemoteWrite)
	if err != nil {
		return err
	}
	if err := s.share(mr); err != nil {
		return err
	}
	hello := make([]byte, 16)
	swap := []func() error{
		func() error { _, err := s.Write(hello); return err },
		func() error { _, err := io.ReadFull(s, hello); return err },
	}
	start, good := time.Now(), false
	send := func(marker byte) error {
		to, err := s.shared()
		if err != nil {
			return err
		}
		if int(to.Len) < size {
			return fmt.Errorf("the peer has mapped %d bytes, fewer than -size %d", to.Len, size)
		}
		b := make([]byte, size)
		for i := range t.o.n {
			if i == t.o.n-1 {
				new(count).fill(b[:size-1])
				b[size-1] = marker
			} else {
				b[size-1] = 0xff // not yet a number
			}
			if err := s.c.WriteRemote(s.ctx, to, b); err != nil {
				return err
			}
		}
		return nil
	}
	recv := func(marker byte) error {
		return t.ep.Wait(s.ctx, func(time.Time, *softnic.Port) bool {
			good = new(count).is(mr.Bytes()[:size-1])
			return mr.Bytes()[size-1] == marker
		})
	}
	first, second := send, recv
	if t.to == "" {
		swap[0], swap[1] = swap[1], swap[0]
		first, second = recv, send
	}
	for _, f := range append(swap, func() error { return first(0) }) {
		if err := f(); err != nil {
			return err
		}
	}
	if err := second(1); err != nil && !t.over(err) {
		return err
	}
	t.rate(2*t.o.n, size, start, said(good))
	return nil
}
