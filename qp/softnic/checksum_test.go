package softnic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// TestHeaderChecksum: a flipped bit of the IPv4 header, which the ICRC does not cover
// in the type of service and the time to live, is found by the header's checksum.
func TestHeaderChecksum(t *testing.T) {
	p := onePort(t, 1, softnic.Config{ECT: true}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	b := request(q).AppendTo(nil)
	for i, at := range []int{15, 22, 24} { // type of service, time to live, checksum
		b[at] ^= 3
		require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
		b[at] ^= 3
		require.EqualValues(t, i+1, p.Counters().RxHeaderChecksum)
	}
	sum := [2]byte(b[24:])
	b[24], b[25] = 0, 0 // as a host leaves it to its adapter: not from a wire
	require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
	copy(b[24:], sum[:])
	require.Zero(t, p.Counters().RxMalformed)
	require.Zero(t, q.Counters().RxPackets)
	require.Equal(t, softnic.Delivered, p.HandleFrame(start, b))
}

// TestRunts: what says nothing of RoCE is not malformed RoCE.
func TestRunts(t *testing.T) {
	p := onePort(t, 1, softnic.Config{}, "192.0.2.1")
	q, _ := qpOf(t, p, start, qp.RC, toPeer(), nil)
	b := request(q).AppendTo(nil)
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, nil))
	for n := range len(b) {
		want := softnic.NotRoCE
		if n >= 38 { // the UDP destination port
			want = softnic.Malformed
		}
		require.Equal(t, want, p.HandleFrame(start, b[:n]), n)
	}
	require.EqualValues(t, 1+38, p.Counters().RxNotRoCE)
	// Fragments: the first one is RoCE's, whose a later one is nobody knows.
	b[20] = 0x20
	require.Equal(t, softnic.Malformed, p.HandleFrame(start, b))
	b[20], b[21] = 0, 1
	require.Equal(t, softnic.NotRoCE, p.HandleFrame(start, b))
}
