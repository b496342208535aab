package bth_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
)

type opcodeRow struct {
	name, class string
	headers     []string
	payload     bth.PayloadRule
}

// opcodeTable reads the table that was written out by hand.
func opcodeTable(t testing.TB) map[bth.Opcode]opcodeRow {
	t.Helper()
	b, err := os.ReadFile("testdata/opcodes.txt")
	require.NoError(t, err)
	rules := map[string]bth.PayloadRule{"none": bth.NoPayload, "0..mtu": bth.UpToMTU, "1..mtu": bth.OneToMTU,
		"exactly-mtu": bth.ExactlyMTU, "8": bth.EightBytes, "16": bth.SixteenZero}
	table := map[bth.Opcode]opcodeRow{}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		require.Len(t, f, 5, line)
		op, err := strconv.ParseUint(f[0], 16, 8)
		require.NoError(t, err)
		row := opcodeRow{name: f[1], class: f[2], payload: rules[f[4]]}
		require.Contains(t, rules, f[4])
		if f[3] != "-" {
			row.headers = strings.Split(f[3], ",")
		}
		table[bth.Opcode(op)] = row
	}
	require.Len(t, table, 85)
	return table
}

var (
	extBits = map[string]bth.Ext{"RDETH": bth.HasRDETH, "DETH": bth.HasDETH, "XRCETH": bth.HasXRCETH,
		"FETH": bth.HasFETH, "RETH": bth.HasRETH, "AtomicETH": bth.HasAtomicETH, "AETH": bth.HasAETH,
		"AtomicAckETH": bth.HasAtomicAckETH, "ImmDt": bth.HasImmDt, "IETH": bth.HasIETH}
	extLen = map[string]int{"RDETH": 4, "DETH": 8, "XRCETH": 4, "FETH": 4, "RETH": 16, "AtomicETH": 28, "AETH": 4,
		"AtomicAckETH": 8, "ImmDt": 4, "IETH": 4}
)

// TestOpcodeTable holds all 256 opcodes against the table.
// Rule WI-9.
func TestOpcodeTable(t *testing.T) {
	table := opcodeTable(t)
	services := []bth.Service{bth.RC, bth.UC, bth.RD, bth.UD, bth.CNPService, bth.XRC, bth.Manufacturer6, bth.Manufacturer7}
	longest := 0
	for i := range 256 {
		op := bth.Opcode(i)
		require.Equal(t, services[i>>5], op.Service(), "%#x", i)
		require.EqualValues(t, i&0x1f, op.Operation())
		require.Equal(t, op, op.Service().Opcode(op.Operation()))

		row, known := table[op]
		require.Equal(t, known, op.Known(), "%#x", i)
		if !known {
			name, class := "RESERVED_0x", bth.Unknown
			if i >= 0xc0 {
				name, class = "MANUFACTURER_0x", bth.Vendor
			}
			require.Equal(t, name+strconv.FormatInt(int64(i), 16), op.String())
			require.Equal(t, class, op.Class(), op)
			require.Zero(t, op.HeaderSize(), op)
			require.Zero(t, op.Ext(), op)
			require.Zero(t, op.Payload(), op)
			require.False(t, op.First() || op.Middle() || op.Last() || op.Send() || op.Write() || op.ReadResponse(), op)
			continue
		}
		require.Equal(t, row.name, op.String())
		require.Equal(t, row.class, op.Class().String(), op)
		require.Equal(t, row.payload, op.Payload(), op)
		var ext bth.Ext
		size := 12
		for _, h := range row.headers {
			require.Greater(t, extBits[h], ext, "%v: %s is not in wire order", op, h)
			ext |= extBits[h]
			size += extLen[h]
		}
		require.Equal(t, ext, op.Ext(), op)
		require.Equal(t, size, op.HeaderSize(), op)
		require.Equal(t, size-12, ext.Size(), op)
		longest = max(longest, size)

		// The last word of an operation's name, before what it carries.
		base, _, _ := strings.Cut(row.name, "_WITH_")
		require.Equal(t, strings.HasSuffix(base, "_FIRST"), op.First(), op)
		require.Equal(t, strings.HasSuffix(base, "_MIDDLE"), op.Middle(), op)
		require.Equal(t, strings.HasSuffix(base, "_LAST"), op.Last(), op)
		require.Equal(t, strings.Contains(base, "_SEND_"), op.Send(), op)
		require.Equal(t, strings.Contains(base, "_RDMA_WRITE_"), op.Write(), op)
		require.Equal(t, strings.Contains(base, "_READ_RESPONSE_"), op.ReadResponse(), op)
	}
	require.Equal(t, bth.MaxHeaderSize, longest)
}

func TestOpcodeConstants(t *testing.T) {
	for name, op := range map[string]bth.Opcode{
		"RC_SEND_FIRST": bth.RCSendFirst, "RC_SEND_MIDDLE": bth.RCSendMiddle, "RC_SEND_LAST": bth.RCSendLast,
		"RC_SEND_LAST_WITH_IMMEDIATE": bth.RCSendLastImm, "RC_SEND_ONLY": bth.RCSendOnly,
		"RC_SEND_ONLY_WITH_IMMEDIATE": bth.RCSendOnlyImm, "RC_RDMA_WRITE_FIRST": bth.RCWriteFirst,
		"RC_RDMA_WRITE_MIDDLE": bth.RCWriteMiddle, "RC_RDMA_WRITE_LAST": bth.RCWriteLast,
		"RC_RDMA_WRITE_LAST_WITH_IMMEDIATE": bth.RCWriteLastImm, "RC_RDMA_WRITE_ONLY": bth.RCWriteOnly,
		"RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE": bth.RCWriteOnlyImm, "RC_RDMA_READ_REQUEST": bth.RCReadRequest,
		"RC_RDMA_READ_RESPONSE_FIRST": bth.RCReadResponseFirst, "RC_RDMA_READ_RESPONSE_MIDDLE": bth.RCReadResponseMiddle,
		"RC_RDMA_READ_RESPONSE_LAST": bth.RCReadResponseLast, "RC_RDMA_READ_RESPONSE_ONLY": bth.RCReadResponseOnly,
		"RC_ACKNOWLEDGE": bth.RCAcknowledge, "RC_ATOMIC_ACKNOWLEDGE": bth.RCAtomicAcknowledge,
		"RC_COMPARE_SWAP": bth.RCCmpSwap, "RC_FETCH_ADD": bth.RCFetchAdd,
		"RC_SEND_LAST_WITH_INVALIDATE": bth.RCSendLastInv, "RC_SEND_ONLY_WITH_INVALIDATE": bth.RCSendOnlyInv,
		"RC_FLUSH": bth.RCFlush, "RC_ATOMIC_WRITE": bth.RCAtomicWrite, "UC_SEND_ONLY": bth.UCSendOnly,
		"UC_RDMA_WRITE_ONLY": bth.UCWriteOnly, "UD_SEND_ONLY": bth.UDSendOnly,
		"UD_SEND_ONLY_WITH_IMMEDIATE": bth.UDSendOnlyImm, "CNP": bth.CNP,
	} {
		require.Equal(t, name, op.String())
	}
	require.EqualValues(t, 0x81, bth.CNP)
	require.False(t, bth.Opcode(0x80).Known(), "InfiniBand's own CNP is not RoCE's")
	require.False(t, bth.Opcode(0x15).Known(), "RESYNC is an operation of RD only")
}

// TestNames holds that no String panics, and that unknown values are numbers.
func TestNames(t *testing.T) {
	for i := range 256 {
		require.NotEmpty(t, bth.Opcode(i).String())
		require.NotEmpty(t, bth.Service(i).String())
		require.NotEmpty(t, bth.Class(i).String())
	}
	require.Equal(t, "8", bth.Service(8).String())
	require.Equal(t, "255", bth.Class(255).String())
	require.Equal(t, "manufacturer", bth.Vendor.String())
	require.Equal(t, "reserved", bth.Unknown.String())
	require.Zero(t, bth.Ext(0xfc00).Size(), "bits that are no header have no length")
}
