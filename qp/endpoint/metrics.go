package endpoint

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// Counters count what an endpoint did with connections.
type Counters struct {
	Dialled     uint64 // requests for connections sent
	Established uint64 // connections established, requested by either side
	Refused     uint64 // requests refused here
	Rejected    uint64 // connections that a peer refused
	TooLong     uint64 // times that packets were lost because the link's MTU has become smaller
	// Dropped are the packets that came faster than they were taken: the system had no
	// room for them in the socket's buffer. Those that come as one datagram or frame
	// count as one. Linux; 0 on a TAP interface, where the host counts them as
	// not sent.
	Dropped uint64
}

// Metrics are an endpoint's numbers at one time.
type Metrics struct {
	Endpoint    Counters
	Port        softnic.Counters
	CM          cm.MachineCounters
	QPs         qp.Counters // sums over the established connections
	Conns       int
	Calls       int // of the connection machine, those in timewait included
	HalfOpen    int
	Regions     int
	Outstanding int // requests posted and not complete
	Inbox       int // messages received and not yet returned by Recv
}

// countDropped updates Dropped. A socket that is closed has no count. The lock is held.
func (e *Endpoint) countDropped() {
	e.counted.Dropped = max(e.counted.Dropped, e.wire.dropped())
}

// Metrics returns the endpoint's numbers. After Close they are those that it had then.
func (e *Endpoint) Metrics() Metrics {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.port == nil {
		return Metrics{}
	}
	e.countDropped()
	m := Metrics{Endpoint: e.counted, Port: e.port.Counters(), CM: e.port.CMCounters(), Conns: len(e.conns), Regions: e.regs.Len()}
	m.Calls, m.HalfOpen = e.port.Calls()
	sum := reflect.ValueOf(&m.QPs).Elem()
	for c := range e.conns {
		q := reflect.ValueOf(c.q.Counters())
		for i := range sum.NumField() {
			sum.Field(i).SetUint(sum.Field(i).Uint() + q.Field(i).Uint())
		}
		m.Outstanding += c.q.Outstanding()
		m.Inbox += len(c.inbox.got)
	}
	return m
}

// WriteOpenMetrics writes the numbers as OpenMetrics text. Those of queue pairs are of the
// established connections, and so may fall.
func (m *Metrics) WriteOpenMetrics(w io.Writer) error {
	var b strings.Builder
	counters := func(prefix string, kind string, v any) {
		x := reflect.ValueOf(v)
		for i := range x.NumField() {
			if x.Field(i).Kind() != reflect.Uint64 {
				continue
			}
			name := prefix + snake(x.Type().Field(i).Name)
			suffix := ""
			if kind == "counter" {
				suffix = "_total"
			}
			fmt.Fprintf(&b, "# TYPE %s %s\n%s%s %d\n", name, kind, name, suffix, x.Field(i).Uint())
		}
	}
	counters("roce_endpoint_", "counter", m.Endpoint)
	counters("roce_port_", "counter", m.Port)
	counters("roce_cm_", "counter", m.CM)
	counters("roce_qp_", "gauge", m.QPs)
	for _, g := range []struct {
		name string
		v    int
	}{{"connections", m.Conns}, {"calls", m.Calls}, {"half_open_calls", m.HalfOpen}, {"regions", m.Regions},
		{"requests_outstanding", m.Outstanding}, {"messages_waiting", m.Inbox}} {
		fmt.Fprintf(&b, "# TYPE roce_%s gauge\nroce_%s %d\n", g.name, g.name, g.v)
	}
	b.WriteString("# EOF\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// snake converts RxICRCEncapsulated to rx_icrc_encapsulated.
func snake(s string) string {
	var b strings.Builder
	upper := func(i int) bool { return i >= 0 && i < len(s) && s[i] >= 'A' && s[i] <= 'Z' }
	for i := range len(s) {
		if upper(i) && i > 0 && (!upper(i-1) || i+1 < len(s) && !upper(i+1)) {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(s[i : i+1]))
	}
	return b.String()
}
