package simnet

import (
	"fmt"

	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// ConnConfig holds the parameters of ConnectQPs. Zero values mean what is in brackets.
type ConnConfig struct {
	Type      qp.Type // RC, or UC
	MTU       int     // [4096]
	SendDepth int     // [64] work requests
	RecvDepth int     // [64]
	RdAtomic  int     // [16] READs and ATOMICs outstanding, each way; negative: none
	Access    qp.Access
	// [RemoteWrite, RemoteRead, RemoteAtomic] what the peers may do.

	DSCP     uint8 // and so the priority
	Timeout  uint8 // [14] 4.096 us x 2^Timeout
	RetryCnt uint8 // [7]
	// RetryForever reads the 7 as for ever, as the Linux driver does.
	RetryForever bool

	// Selective is selective repeat in place of go-back-N, at both ends.
	Selective qp.Selective

	// NoNeighbors lets the hosts find each other's hardware addresses by ARP or neighbour
	// discovery, where Attr also clears them. The network must carry bytes.
	NoNeighbors bool

	// QP and Attr, where not nil, change the configuration and the attributes that follow
	// from the fields above, for queue pair 0 on the first host or 1 on the second.
	QP   func(i int, c *softnic.QPConfig)
	Attr func(i int, a *qp.Attr)
}

// ConnectQPs creates a queue pair on each of two hosts, and connects them to each other:
// they are in RTS. Their completions go to the hosts' CQs, and the hosts know each other's
// hardware addresses from then on. Congestion control that uses the number of switches
// between the hosts gets their present number.
func (n *Network) ConnectQPs(a, b *Host, cfg ConnConfig) (qa, qb *softnic.QP, err error) {
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	or(&cfg.MTU, 4096)
	or(&cfg.SendDepth, 64)
	or(&cfg.RecvDepth, 64)
	or(&cfg.RdAtomic, 16)
	cfg.RdAtomic = max(cfg.RdAtomic, 0)
	if cfg.Type > qp.UC {
		return nil, nil, fmt.Errorf("%w: queue pairs of type %v are not connected here", ErrConfig, cfg.Type)
	}
	if n.carry == Shared {
		cfg.Selective.ByReference = true // payloads stay in the sender's memory anyway
	}
	if cfg.Access == 0 {
		cfg.Access = qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 14
	}
	if cfg.RetryCnt == 0 {
		cfg.RetryCnt = 7
	}
	hosts, q := [2]*Host{a, b}, [2]*softnic.QP{}
	for i, h := range hosts {
		c := softnic.QPConfig{
			Config: qp.Config{
				Type: cfg.Type, MaxSendWR: cfg.SendDepth, MaxRecvWR: cfg.RecvDepth,
				MaxRdAtomic: cfg.RdAtomic, MaxDestRdAtomic: cfg.RdAtomic, LinuxRetryForever: cfg.RetryForever,
				Selective: cfg.Selective,
			},
			SendCQ: h.CQ, RecvCQ: h.CQ,
		}
		if cfg.QP != nil {
			cfg.QP(i, &c)
		}
		if q[i], err = h.Port.CreateQP(c); err != nil {
			if i == 1 {
				q[0].Destroy()
			}
			return nil, nil, err
		}
	}
	if !a.neighbors[b] && !cfg.NoNeighbors {
		a.neighbors[b], b.neighbors[a] = true, true
		a.meet(b)
		b.meet(a)
	}
	for i := range hosts {
		gid, _ := hosts[1-i].Port.GID(0)
		at := qp.Attr{
			PKey: 0xffff, Access: cfg.Access, PathMTU: cfg.MTU, DestQPN: q[1-i].Num(),
			AH: qp.AHAttr{
				GID: gid, TrafficClass: cfg.DSCP << 2, MAC: hosts[1-i].Port.MAC(),
			},
			RQPSN: firstPSN(q[1-i], 1-i), SQPSN: firstPSN(q[i], i),
			MaxRdAtomic: cfg.RdAtomic, MaxDestRdAtomic: cfg.RdAtomic,
			MinRNRTimer: 12, Timeout: cfg.Timeout, RetryCnt: cfg.RetryCnt, RNRRetry: 7,
		}
		if cfg.Attr != nil {
			cfg.Attr(i, &at)
		}
		if err = q[i].Connect(n.Now(), &at); err != nil {
			q[0].Destroy()
			q[1].Destroy()
			return nil, nil, err
		}
	}
	for i, h := range hosts {
		if q[i].GoesByPath() {
			if p, err := n.Path(h, hosts[1-i]); err == nil && len(p) > 1 {
				q[i].SetHops(len(p) - 1)
			}
		}
	}
	return q[0], q[1], nil
}

// firstPSN returns starting PSNs that are easy to distinguish in a trace.
func firstPSN(q *softnic.QP, i int) psn.PSN {
	return psn.PSN((q.Num()*0x1000 + uint32(i)*0x800000) & psn.Mask)
}

// meet enters the other host's hardware address.
func (h *Host) meet(o *Host) {
	for i := 0; ; i++ {
		g, ok := o.Port.GID(i)
		if !ok {
			return
		}
		h.Port.AddNeighbor(addrOf(g), o.Port.MAC())
	}
}

// Register registers b as memory that peers may access, and returns its virtual address and
// key. The protection domain is 0, as that of the queue pairs of ConnectQPs.
func (h *Host) Register(b []byte, access qp.Access) (addr uint64, rkey uint32, err error) {
	addr = h.nextAddr
	if rkey, err = h.Regions.Register(qp.Region{Data: b, Addr: addr, Access: access}); err != nil {
		return 0, 0, err
	}
	h.nextAddr += (uint64(len(b)) + 0xfff) &^ 0xfff
	return addr, rkey, nil
}
