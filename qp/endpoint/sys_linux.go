package endpoint

import "syscall"

// Socket options that package syscall lacks.
const (
	udpNoCheck6RX = 102 // UDP_NO_CHECK6_RX
	rcvBufForce   = 33  // SO_RCVBUFFORCE
)

// forceReadBuffer sets the size of a socket's buffer beyond what the system gives to
// everybody, where this process may.
func forceReadBuffer(fd uintptr, n int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, rcvBufForce, n)
}

// udpOptions makes the kernel set Don't Fragment and identification 0, and take IPv6
// packets with UDP checksum 0, as the Linux driver sends them.
func udpOptions(fd uintptr, v4 bool) error {
	if v4 {
		return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
	}
	if err := syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER, syscall.IPV6_PMTUDISC_DO); err != nil {
		return err
	}
	return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, udpNoCheck6RX, 1)
}
