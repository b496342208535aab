package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/rules"
)

// hint tells how serious a breach of a rule is, and what to check when it is broken or the
// event is frequent.
type hint struct {
	weight int
	text   string
}

var hints = map[conform.Rule]hint{
	conform.RuleICRC:       {100, "Bad ICRCs: data was damaged after the sending RNIC summed it. Look for a device on the path that rewrites headers (NAT, a tunnel, DSCP is safe), or for bad memory in a switch or a card; a receiver drops these packets, so that they show as losses too."},
	conform.RuleRS22:       {98, "An ATOMIC had two responses with different values: it was executed twice, or the replay is broken. Do not trust locks or counters over this responder."},
	conform.RuleRS15:       {97, "READ responses with a wrong opcode or size: the requester may take wrong data for right. Suspect the responder's firmware or driver."},
	conform.RuleRS14:       {96, "Responses out of order or missing: a requester cannot know what was done. Suspect the responder."},
	conform.RuleRQ22:       {95, "Acknowledgements of what was not sent: requests complete that were never delivered. Suspect the responder, or two QPs with the same number."},
	conform.RuleRS13:       {94, "Wrong MSNs: credits and completions go wrong with them. Suspect the responder."},
	conform.RuleRQ16:       {93, "Retransmissions with other content: a buffer was reused before its completion, or the requester is broken."},
	conform.RuleRS05:       {92, "Packets of a message out of order: a requester's fault, which ends the connection."},
	conform.RuleRS06:       {91, "Payload sizes do not fit the path MTU: compare the path MTU at both ends."},
	conform.RuleRS07:       {90, "DMA length and data disagree: a requester's fault."},
	conform.RuleRS03:       {89, "NAKs that no gap explains, or more than one for a gap: they cause needless retransmission."},
	conform.RuleRQ23:       {88, "The requester goes back further than the NAK asks for: link capacity is wasted."},
	conform.RuleRQ28:       {87, "RNR time is not waited for: the receiver is asked again before it is ready."},
	conform.RuleRQ15:       {86, "Credits are ignored: expect RNR NAKs."},
	conform.RulePKey:       {85, "P_Keys that do not match: packets are dropped in silence. Compare the partition tables."},
	conform.RuleECN:        {80, "Marks of congestion without CNPs: senders do not slow down. Is ECN (the notification point) switched on at the receiver, for this priority?"},
	conform.RuleCNPGap:     {60, "CNPs closer than the least gap: senders slow down more than intended. Compare min_time_between_cnps."},
	conform.RuleTimeout:    {50, "Time-outs: a last packet, an acknowledgement or a READ response was lost, and nothing but the timer noticed. Each costs the whole time-out: look for drops (switch counters, PFC, cables), and compare the time-out with the round trip."},
	conform.RuleRNR:        {45, "RNR NAKs: the receiver has no receive posted. Post more and earlier, use a shared receive queue, or lower the sender's depth."},
	conform.RuleNAK:        {44, "NAKs: sequence errors mean loss or reordering on the path; access and invalid-request errors mean that a program's keys, rights or lengths are wrong, and end the connection."},
	conform.RuleGap:        {40, "Gaps in the PSNs: packets were lost before they were captured, or by the capture. Where NAKs follow, it was the network."},
	conform.RuleReadGap:    {40, "Gaps in READ responses: the same, on the way back."},
	conform.RuleReorder:    {35, "Packets out of order: a path with several routes that is not kept per flow, to which go-back-N reacts with retransmission."},
	conform.RuleDuplicate:  {20, "Copies: a loop or a mirror port that captures twice."},
	conform.RuleUnanswered: {55, "Requests without any response: the other end is down, a filter drops one direction, or the capture has one direction only."},
	conform.RuleMissing:    {30, "The capture itself lost packets: raise its buffer, capture fewer bytes of each, or use a mirror port that keeps up."},
	conform.RuleSPort:      {10, "A flow changes its UDP source port: routers may send its packets along several paths."},
}

func weight(r conform.Rule) int {
	if h, ok := hints[r]; ok {
		return h.weight
	}
	return 70
}

// advice returns what to check, the most important first.
func (c *checker) advice() []string {
	var out []string
	seen := map[conform.Rule]bool{}
	for _, sev := range []conform.Severity{conform.Breach, conform.Note, conform.Event} {
		for _, g := range c.ranked(sev) {
			r := g.check.Rule()
			if h, ok := hints[r]; ok && !seen[r] && len(out) < 8 {
				out = append(out, h.text)
			}
			seen[r] = true
		}
	}
	return out
}

// explain prints the entry of a rule; for a finding without a numbered rule, its meaning and
// what to check.
func explain(w io.Writer, o *options, id string) error {
	o.explained = true
	if r, ok := rules.Find(id); ok {
		_, err := fmt.Fprintf(w, "%s: %s\n\n%s\n", r.ID, r.Title, r.Text)
		return err
	}
	for r := conform.RuleNone + 1; r.Title() != ""; r++ {
		if !strings.EqualFold(r.String(), id) {
			continue
		}
		fmt.Fprintf(w, "%s: %s\n", r, r.Title())
		if h, ok := hints[r]; ok {
			fmt.Fprintf(w, "\n%s\n", h.text)
		}
		return nil
	}
	return fmt.Errorf("there is no such rule; qp/RULES.md, bth/RULES.md and cnp/RULES.md list the numbers")
}
