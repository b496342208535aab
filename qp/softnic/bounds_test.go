package softnic

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
)

// TestSRQNumbersGoRound: after the last number comes the first that is free, and
// never 0 nor one in use.
func TestSRQNumbersGoRound(t *testing.T) {
	p, err := New(Config{GIDs: []GID{{Addr: netip.MustParseAddr("192.0.2.1")}}})
	require.NoError(t, err)
	var nums []uint32
	for _, last := range []uint32{0, 0xfffffd, 0xffffff, 0xffffff} {
		p.lastSRQ = last
		for range 3 {
			s, err := p.CreateSRQ(1, 0)
			require.NoError(t, err)
			nums = append(nums, s.Num())
		}
	}
	require.Equal(t, []uint32{1, 2, 3, 0xfffffe, 0xffffff, 4, 5, 6, 7, 8, 9, 10}, nums)
	require.Len(t, p.srqs, len(nums))
}

// TestGroupsAreForgotten: multicast groups go with their last QP.
func TestGroupsAreForgotten(t *testing.T) {
	p, err := New(Config{GIDs: []GID{{Addr: netip.MustParseAddr("192.0.2.1")}}})
	require.NoError(t, err)
	for i := range 300 {
		q, err := p.CreateQP(QPConfig{Config: qp.Config{Type: qp.UD, MaxSendWR: 1}})
		require.NoError(t, err)
		a := netip.AddrFrom4([4]byte{224, 1, byte(i >> 8), byte(i)})
		require.NoError(t, q.AttachMulticast(a))
		require.NoError(t, q.AttachMulticast(a))
		require.Len(t, p.groups, 1)
		if i&1 == 0 {
			q.DetachMulticast(a)
			require.Empty(t, p.groups)
		}
		q.Destroy()
	}
	require.Empty(t, p.groups)
}
