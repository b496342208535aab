#!/bin/sh
# Counts with tshark what the watcher counts, for metrics.txt: run it here as
#   ./metrics.sh >metrics.txt
# Each line: capture, sender, destination QP, name, count. The first counts are
# display filters; those of the last group follow PSNs with awk, in the order of
# the capture: a request whose PSN is not above the highest so far, and whose IP
# identification no packet with this PSN had before, is a retransmission; with
# the same identification it is a copy. READ responses go by the PSN alone;
# a READ request takes a PSN for each of its responses.
# The probe captures are left out: tshark counts what a receiver drops.
set -eu
cd "$(dirname "$0")/../../../fuzz/captures"

count() { # NAME FILTER
	tshark -r "$f" -Y "udp.dstport==4791 && ($2)" -T fields -e ip.src -e ipv6.src -e infiniband.bth.destqp 2>/dev/null |
		awk -v n="$1" -v c="${f%.pcap}" '{ k[$1 " " $2]++ } END { for (i in k) print c, i, n, k[i] }'
}

for f in *.pcap; do
	case $f in probe-*) continue ;; esac
	count frames infiniband
	count data_frames 'infiniband.bth.opcode!=17 && infiniband.bth.opcode!=129'
	count ack 'infiniband.bth.opcode==17 && infiniband.aeth.syndrome.opcode==0'
	count nak 'infiniband.bth.opcode==17 && infiniband.aeth.syndrome.opcode==3'
	count nak_sequence 'infiniband.bth.opcode==17 && infiniband.aeth.syndrome.opcode==3 && infiniband.aeth.syndrome.error_code==0'
	count rnr 'infiniband.bth.opcode==17 && infiniband.aeth.syndrome.opcode==1'
	count cnp 'infiniband.bth.opcode==129'
	count ce 'infiniband.bth.opcode!=17 && (ip.dsfield.ecn==3 || ipv6.tclass.ecn==3)'
	mtu=1024
	case $f in *mtu256*) mtu=256 ;; *mtu4096*) mtu=4096 ;; esac
	tshark -r "$f" -Y 'udp.dstport==4791 && infiniband' -T fields -E separator=, -e frame.len \
		-e infiniband.bth.opcode -e infiniband.bth.psn -e infiniband.bth.destqp -e ip.id -e infiniband.reth.dmalen -e ip.src -e ipv6.src 2>/dev/null |
		awk -F, -v mtu="$mtu" -v c="${f%.pcap}" '
		function ends(op) { op %= 32; return op >= 2 && op <= 5 || op >= 8 && op <= 12 || op == 19 || op == 20 || op == 22 || op == 23 }
		{
			op = $2; psn = $3; id = $5; k = $7 $8 " " $4; span = op == 12 && $6 > mtu ? int(($6 + mtu - 1) / mtu) : 1
			bytes[k] += $1
			if (op == 17 || op == 129) next
			old = 0
			if (op >= 13 && op <= 18) old = (k, "r", psn) in seen
			else if (op < 96 && (k in top)) { d = (psn - top[k] + 16777216) % 16777216; old = d == 0 || d >= 8388608 }
			if (old && op < 13 && (k, psn, id) in ids || old && op > 18 && (k, psn, id) in ids) dup[k]++
			else if (old) again[k]++
			else if (op < 13 || op > 18) top[k] = (psn + span - 1) % 16777216
			if (op >= 13 && op <= 18) seen[k, "r", psn] = 1
			else { if (ends(op) && !((k, psn) in first) && !(old && op == 12)) msg[k]++; first[k, psn] = 1; ids[k, psn, id] = 1 }
		}
		END {
			for (i in bytes) print c, i, "bytes", bytes[i]
			for (i in msg) print c, i, "message_tx", msg[i]
			for (i in dup) print c, i, "duplicates", dup[i]
			for (i in again) print c, i, "data_frames_retransmitted", again[i]
		}'
done | sort
