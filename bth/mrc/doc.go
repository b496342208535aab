// Package mrc holds the headers of MRC (Multipath Reliable Connection, revision
// 1.0 of March 2026), an extension of RoCE v2: RDMA WRITEs with an address in
// every packet, selective acknowledgements, a path for each packet, trimming.
// [Packet] is a whole MRC packet from BTH to ICRC. The codecs keep the contract
// of package bth: no allocation, all or nothing, reserved bits kept.
//
// # Experimental
//
// The text of the specification was not at hand. What stands here was put together from
// four independent implementations (an emulator of an end host in Python, a model for ns-3,
// a dissector in JavaScript, the test bench of an FPGA core) and from notes of readers.
// None of them showed a packet of a device. No conformance is claimed, and names and
// layouts may change once they are compared with the specification. Table numbers are those
// of the specification as the implementations quote them.
//
// # Certain
//
// Three or four of the implementations agree on all of this:
//
//	opcodes    C6..CB, D1, D8, D9, DC, DD, DE; no other of C0..DF
//	stacks     WRITE: METH, TSETH if the ts bit is set, RETH, ImmDt in CB and C9, payload
//	           D1: AETH   D8: ERTH   D9: EETH   DC: SETH, CC_STATE   DD: NETH   DE: PETH
//	BTH        as RoCE v2, with rtx (byte 8, bit 5: sent again) and ts (byte 8, bit 4)
//	WRITE      RETH in every packet: the address grows by the path MTU, R_Key and length
//	           are those of the whole message
//	METH       tables 6-8, 6-9: RQMSN, MSN
//	TSETH      tables 6-6, 6-7
//	SETH       tables 7-14, 7-15, but for the notes below
//	CC_STATE   tables 7-12, 7-13
//	NETH       tables 7-16, 7-17; the seven reasons
//	PETH       tables 7-18, 7-19
//	ERTH       tables 7-20, 7-21, but for the order of the ports
//	EETH       tables 7-22, 7-23: length and timestamp
//	control    packets other than WRITEs have no payload, no pad and an exact length
//
// # Less certain, and what is done
//
//	SACK bitmap      bit i, from the least significant, is PSN cack_psn + sack_offset + i
//	                 (two say so).
//	PSN of a packet  SACK: cack_psn. NACK: nack_psn. Endpoint operations: the request id in
//	                 the low 16 bits. Probe: 0 (one puts the probe id there). Not checked here.
//	ICRC             the rule of RoCE v2, unchanged: byte 4 of the BTH is masked, byte 8 is
//	                 covered. One source says so; two compute something simpler that cannot
//	                 be right for RoCE v2.
//	pad              the rule of RoCE v2: the pad count is taken off the payload. Odd lengths
//	                 with a pad count of 0 are decoded as well.
//	SE and MigReq    which of the two is first differs. Read as in RoCE v2, sent as the fields
//	                 say (0 is right), never checked.
//	reserved bits    fields that are kept. No source says what a receiver does with them; they
//	                 make nothing invalid.
//	cc_type          CC_STATE has this layout for cc_type 0 in the SETH. For other values the
//	                 eight bytes are kept, and mean nothing.
//	tsr              0: the timestamp counts 128 ns. 1: "implementation defined", or 1 µs. Kept.
//	ftype            1 wherever a timestamp stands; one source sends 0 without one. Kept.
//	NACK reasons     others are decoded, and have a number for a name. An eighth is said to exist.
//	spdcid, dpdcid   low 16 bits of QP numbers; whether "source" is the sender of the packet or
//	                 always the requestor differs. Kept, for nothing else.
//	zero length      a WRITE without payload is decoded; one text begins message sizes at 1.
//	first values     of MSN and RQMSN: 0 or 1. Not checked. RQMSN has no meaning in a WRITE
//	                 without immediate.
//	ports            which bit of the port status mask is the first port is not known.
//	window           of MPR packets above cack_psn; one text puts its upper end one lower.
//
// # Switches
//
// Where the sources contradict one another, and a guess would be needed, the
// caller decides:
//
//	UDP port         4791. Three readers took 4971 from the text: frame.Finder's UDPPort has
//	                 to say so. MRC is told by the opcode, never by the port.
//	MRC at all       The opcodes C0..DF belong to any manufacturer. Package frame decodes
//	                 them only into a Frame whose MRC field the caller has set.
//	entropy          [Halves]: on IPv6, which half of an entropy value is the UDP source port
//	                 and which is in the flow label. The default is the low half in the port,
//	                 which alone fits what responders are said to do with IPv4.
//	trimmed packets  Only the DSCP tells them, and networks differ in it: frame.Finder's
//	                 TrimmedDSCP names the values. Such a packet has no ICRC, perhaps no RETH,
//	                 and lengths that may or may not have been corrected. [Packet.DecodeTrimmed]
//	                 reads the headers that are left.
//	op of EETH       Bits 3..2 of byte 1 (two sources) or bits 5..4 (one). A response is
//	                 matched with its request by the id in the PSN, and that request's op is
//	                 certain: [Requests] does so. The field is a check; [EETH.OpAt] reads either.
package mrc
