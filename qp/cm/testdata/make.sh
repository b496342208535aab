#!/bin/sh
# Writes NAME.txt for each capture NAME.pcap given: the management datagrams
# in it, with what tshark makes of them. See README.md.
#
#   sh make.sh DIR/cm-*.pcap
set -eu
fields=$(tshark -G fields | awk -F '\t' '$1 == "F" && $3 ~ /^infiniband\.(mad|cm)\./ && $3 != "infiniband.mad.data" { print "-e", $3 }' | sort -u)
for pcap in "$@"; do
	# The datagram is the UDP payload without BTH (12 bytes), DETH (8) and
	# the ICRC (4) behind it.
	tshark -r "$pcap" -Y infiniband.mad -T fields -E header=y -E occurrence=a \
		-e frame.number -e udp.payload $fields |
		awk -F '\t' '
			NR == 1 { n = split($0, name); next }
			{
				if (NR > 2) print ""
				print "frame", $1
				print "mad", substr($2, 41, length($2) - 48)
				for (i = 3; i <= n; i++) if ($i != "") print name[i], $i
			}' >"$(basename "$pcap" .pcap).txt"
done
