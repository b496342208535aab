package frame_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
)

// A frame whose link was forgotten, or is one that AppendTo makes no header of,
// does not validate; nor does a GRH without the Ethertype that tells it.
func TestValidateLink(t *testing.T) {
	f, _ := writeFrame()
	for link, want := range map[frame.Link]error{
		frame.Ethernet: nil, frame.RawIP: nil, frame.RawIPv4: nil, frame.RawIPv6: nil,
		0: frame.ErrLink, frame.LinuxSLL: frame.ErrLink, frame.LinuxSLL2: frame.ErrLink,
	} {
		f.Link = link
		require.Equal(t, want, f.Validate(), link)
	}
	f.Net, f.Link = frame.GRH, frame.RawIP
	require.Equal(t, frame.ErrLink, f.Validate())
}

// The numbers of pcap files, by tcpdump.org's list of link-layer types.
func TestLinkNumbers(t *testing.T) {
	require.Equal(t, [...]frame.Link{1, 101, 113, 228, 229, 276},
		[...]frame.Link{frame.Ethernet, frame.RawIP, frame.LinuxSLL, frame.RawIPv4, frame.RawIPv6, frame.LinuxSLL2})
}
