// Package crc computes, checks, appends and patches the invariant CRC (ICRC) of
// RoCE packets: RoCE v1 (a GRH in front) and RoCE v2 over IPv4 and IPv6.
//
// # What is covered
//
// The ICRC (InfiniBand Architecture Volume 1, 7.8.1; Annex A17) is the CRC-32 of
// Ethernet over eight bytes of ones, then the packet from its network header up
// to the ICRC, with every bit that a router or switch may change set to ones:
//
//	IPv4       type of service, time to live, header checksum
//	IPv6, GRH  traffic class, flow label, hop limit
//	UDP        checksum
//	BTH        byte 4: FECN, BECN and six reserved bits
//
// This package owns that masking, and does it while reading: packets are never
// written to or copied (where there are IPv4 options, only the header). The last four bytes of a
// packet hold the ICRC, least significant byte first.
//
// "Network packet" means here: the bytes from the first byte of the IPv4, IPv6
// or GRH header to the last byte before the ICRC ([Sum], [Append]) or to the end
// of the ICRC ([Check]). Ethernet headers, VLAN tags, Ethernet padding and the
// frame check sequence are not part of it. Which of the three headers it is
// follows from the packet itself: a first nibble of 6 is a GRH if the next-header
// byte is 0x1B, else IPv6; anything else is read as IPv4, options included. IPv6
// extension headers are not looked for. No function here checks that a packet makes
// sense: all are total, and mask what is there.
//
// # The algebra
//
// Read bits as coefficients over GF(2). With P the polynomial of degree 32, the
// CRC register after a message M that started from a register R is
//
//	R·x^8n + M·x^32   mod P        (n = bytes of M)
//
// The right side is linear in R and in M. Four things follow, and they are all
// that this package does:
//
//   - The eight leading bytes of ones are a constant register to start from.
//   - A message may be cut anywhere. Each 64-bit piece, times the constant
//     x^distance mod P, is a polynomial of degree below 96; the pieces are added,
//     and the sum is reduced once. That is the short-packet kernel. Long packets
//     first fold: a block is moved some bytes to the right (two carry-less
//     products) and added to the block that lies there.
//   - Leading zeros do not change a register of zero, so a message can be padded
//     in front, to a whole number of blocks, and needs no loop over tail bytes.
//   - If covered bytes change by D (old XOR new), and t bytes follow them, the
//     ICRC changes by D·x^32·x^8t mod P: [Patch] needs no other byte of the packet.
//
// # Speed
//
// On amd64 there are kernels for VPCLMULQDQ with AVX-512 and with AVX2, and for
// PCLMULQDQ with SSE4.1; on arm64 for the CRC32 instructions, with and without
// PMULL. The choice is made once, at start-up; the README says which processor gets
// which. Elsewhere, and with the build tag purego, eight bytes a step are looked up
// in 8 KiB of tables, or, of long packets on processors of 64 bits, moved to the words
// behind them by shifts. Nothing in this package allocates, and no slice given to it
// escapes.
package crc
