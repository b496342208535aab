package qp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
)

func TestOutgoingClone(t *testing.T) {
	b := []byte{1, 2, 3}
	o := &qp.Outgoing{Packet: bth.Packet{Payload: b}, Retransmission: true}
	c := o.Clone()
	require.Equal(t, []byte{1, 2, 3}, c.Packet.Payload)
	require.True(t, c.Retransmission)
	b[0] = 9
	require.Equal(t, []byte{1, 2, 3}, c.Packet.Payload)
	require.Nil(t, (&qp.Outgoing{}).Clone().Packet.Payload)
	require.Len(t, (&qp.Outgoing{Packet: bth.Packet{Payload: make([]byte, 5000)}}).Clone().Packet.Payload, 5000)
}
