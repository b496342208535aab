package endpoint

import (
	"time"

	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// handleEvent tells of an event of the connection machine. The lock is held.
func (e *Endpoint) handleEvent(now time.Time, call *softnic.Call, ev *cm.Event) {
	switch u := call.User.(type) {
	case *Conn:
		e.connEvent(now, u, ev)
	case *resolution:
		u.event(ev)
	case func(*cm.Event):
		u(ev)
	default:
		switch ev.Kind {
		case cm.EventRequest:
			e.request(now, call, ev)
		case cm.EventSIDRRequest:
			e.datagramRequest(now, call, ev)
		}
	}
}

func (e *Endpoint) connEvent(now time.Time, c *Conn, ev *cm.Event) {
	switch ev.Kind {
	case cm.EventEstablished:
		if c.err == nil && !c.est {
			c.est = true
			if ev.Active {
				c.private = append([]byte(nil), ev.PrivateData...)
			}
			close(c.ready)
			e.counted.Established++
			e.log.Info("connection established", "peer", c.remote, "qpn", c.q.Num(), "dialled", ev.Active)
			if c.from != nil {
				c.from.push(now, c)
			}
		}
	case cm.EventRejected:
		e.counted.Rejected++
		err := error(&RejectedError{Peer: c.remote, Reason: ev.Reason, Local: ev.Local, PrivateData: append([]byte(nil), ev.PrivateData...)})
		c.end(now, err)
	case cm.EventUnreachable:
		c.end(now, &UnreachableError{Peer: c.remote})
	case cm.EventDisconnected:
		c.end(now, ErrDisconnected)
	}
	if ev.Last {
		c.gone(now)
	}
}
