package simnet

import "fmt"

func init() { warmFrom = 90 } // so that the fat tree of the tests is large

// CheckBuffer returns an error if the buffer's pools are not empty when nothing waits.
func (s *Switch) CheckBuffer() error {
	switch b := s.buffer.(type) {
	case *dynamicBuffer:
		if b.sharedUsed != 0 {
			return fmt.Errorf("%d bytes of the shared pool are in use", b.sharedUsed)
		}
		for i := range b.in {
			for prio := range 8 {
				if b.in[i][prio] != (usage{}) || b.out[i][prio] != 0 {
					return fmt.Errorf("port %d priority %d: %+v, %d", i, prio, b.in[i][prio], b.out[i][prio])
				}
			}
		}
	case *staticBuffer:
		if b.lossyUsed != 0 {
			return fmt.Errorf("%d lossy bytes", b.lossyUsed)
		}
	}
	return nil
}

// Plain has events wait in a heap, without look-ahead: the simple method, with which the
// fast one is compared.
func (c Config) Plain() Config {
	c.plain = true
	return c
}
