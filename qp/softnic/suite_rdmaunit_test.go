package softnic_test

import (
	"encoding/binary"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// Reasons that README.md gives.
const (
	whyPost      = "found when it is posted, by an error, where verbs end it with a completion"
	whyLocal     = "memory that a peer may write need not be writable by local key"
	whyQueues    = "completion queues have no size, no completion channels and no vectors: they never overflow, and the caller polls"
	whyHandles   = "objects are Go values: there are no wrong handles, and no reference counts that prevent destruction"
	whyEmpty     = "a region may have no bytes, whether registered for the first time or again"
	whyOneBind   = "one request binds windows of both types, and each type is allocated by a call of its own: neither can name a wrong type"
	whyDevice    = "devices, contexts, limits of cards and kinds of pages are the host's"
	whyThreads   = "a port is a machine for one goroutine; qp/endpoint locks it"
	whyWindow    = "a window does not keep its region registered: its rights end with the region"
	whyLinux     = "of the interfaces of a kernel or of one vendor: flows, tags, clocks, counters, memory of devices, extensions"
	whyRaw       = "there are no raw packet queue pairs"
	whyOwnKeys   = "without NewRKey a window has the key that Bind gives it"
	whyFirst     = "where both keys are wrong, the local one of a READ or atomic is found first"
	whyRefused   = "a request in Reset, Init or RTR is refused"
	whyNoSize    = "work requests have no limit of pieces"
	whyElsewhere = "tried elsewhere: workloads in storm_test.go and qp/simnet, threads in qp/endpoint"
)

// rdmaUnitTest are the unit tests of github.com/google/rdma-unit-test, by its names at
// the state of September 2025.
func rdmaUnitTest() []verbsCase {
	var all []verbsCase
	for _, l := range [][]verbsCase{rdmaAccess(), rdmaBuffers(), rdmaRereg(), rdmaWindows(), rdmaType1(), rdmaPDs(), rdmaQPs(), rdmaRC(), rdmaSRQs(), rdmaUD()} {
		all = append(all, l...)
	}
	return append(all,
		not(whyQueues, "CqTest.NegativeCqe CqTest.ZeroCqe CqTest.MaxCqe CqTest.WithChannel CqTest.ShareChannel CqTest.NegativeCompVector "+
			"CqTest.ZeroCompVector CqTest.LargeCompVector CqTest.AboveMaxCompVector CqOverflowTest.SendCqOverflow CqOverflowTest.SendSharedCqOverflow "+
			"CqOverflowTest.RecvCqOverflow CqOverflowTest.RecvSharedCqOverflow CqExTest.Basic CqExTest.ZeroCqe CqExTest.MaxCqe CqExTest.WithChannel "+
			"CqExTest.ShareChannel CqExTest.ZeroCompVector CqExTest.LargeCompVector CqExTest.AboveMaxCompVector CqExOpTest.BasicPollSendCq "+
			"CqExOpTest.BasicPollRecvCq CqExOpTest.BatchPollSendCq CqExOpTest.BatchPollRecvCq CqExOverflowTest.SendCqOverflow "+
			"CqExOverflowTest.RecvCqOverflow CompChannelTest.CreateDestroy CompChannelTest.DestroyChannelWithCqRef "+
			"CompChannelTest.RequestNotificationOnCqWithoutCompChannel CompChannelTest.RequestNotificationInvalidCq CompChannelTest.Atomic "+
			"CompChannelTest.Bind CompChannelTest.Write CompChannelTest.RecvSolicitedNofityAny CompChannelTest.RecvSolicitedNofitySolicited "+
			"CompChannelTest.RecvUnsolicitedNofityAny CompChannelTest.RecvUnsolicitedNofitySolicited CompChannelTest.DeleteWithUnacked "+
			"CompChannelTest.SameQueueMultipleOutstanding CompChannelTest.MuxOntoSingleChannel CompChannelTest.ManyOutstanding "+
			"CompChannelTest.DowngradeRequest CompChannelTest.UpgradeRequest CompChannelTest.NoSpuriousEvents"),
		not(whyHandles, "AhTest.DestroyWithInvalidHandle CqTest.DestroyInvalidCq CqExTest.DestroyInvalidCqEx MwGeneralTest.DeallocInvalidMw "+
			"MwGeneralTest.BindInvalidQp PdTest.DeleteInvalidPd PdTest.AllocQpWithInvalidPd PdTest.AllocMrWithInvalidPd PdTest.AllocMwWithInvalidPd "+
			"PdTest.AhRefCount PdTest.MrRefCount PdTest.MwRefCount PdTest.QpRefCount PdTest.SrqRefCount QpTest.CreateWithInvalidSendCq "+
			"QpTest.CreateWithInvalidRecvCq QpTest.CreateWithInvalidSrq QpTest.QueueRefs QpTest.DeallocPdWithOutstandingQp SrqTest.DestroyInvalidSrq "+
			"SrqTest.CreateWithInvalidPd MwType1Test.DeallocPdWithOutstandingMw"),
		not(whyOneBind, "MwType2Test.Type1BindOnType2"),
		not(whyDevice, "DeviceTest.GetDeviceList DeviceTest.Open DeviceTest.OpenMany DeviceTest.OpenInAnotherThread DeviceTest.OpenInManyThreads "+
			"DeviceTest.QueryDevice DeviceTest.ContextTomfoolery DeviceLimitTest.MaxAh DeviceLimitTest.MaxCqMixed DeviceLimitTest.MaxMr "+
			"DeviceLimitTest.MaxMw DeviceLimitTest.MaxPd DeviceLimitTest.MaxQp DeviceLimitTest.MaxSrq HugePageTest.SendLargeChunk HugePageTest.SendMultipleSge"),
		not(whyThreads, "ThreadedTest.CreateDestroyAh ThreadedTest.CreateDestroyCq ThreadedTest.CreateDestroyCqEx ThreadedTest.AllocDeallocPd "+
			"ThreadedTest.RegDeregMr ThreadedTest.AllocDeallocMw ThreadedTest.CreateDestroyQp ThreadedTest.CreateDestroySrq ThreadedTest.CreateAh "+
			"ThreadedTest.CreateCq ThreadedTest.CreateCqEx ThreadedTest.AllocPd ThreadedTest.RegMr ThreadedTest.AllocMw ThreadedTest.CreateQp "+
			"ThreadedTest.CreateSrq ThreadedWorkloadTest.QpLifecycle ThreadedWorkloadTest.QpDestroyTargetWhileActive "+
			"SrqMultiThreadTest.MultiThreadedSrqLoopback SrqMultiThreadTest.MultiThreadedMultiQpSingleSrq SrqMultiThreadTest.MultiThreadedMultiSrq "+
			"LoopbackUdQpTest.MultiThreadedAhLifecycle"),
		not(whyElsewhere, "StressTest.Write32B100Qp100kOps MwType2AdvancedTest.OnlyReads"),
		not(whyNoSize, "QpTest.MaxSge SrqTest.MaxSge SrqTest.ExceedMaxSge SrqTest.DeviceCap SrqTest.ExceedDeviceMaxSge"),
	)
}

func rdmaAccess() []verbsCase {
	// with replaces a memory by one with fewer rights.
	without := func(v *verbs, less qp.Access) mem {
		m := v.reg(v.pd, 4096, allAccess&^less)
		for i := range m.b {
			m.b[i] = 'b'
		}
		return m
	}
	message := func(v *verbs, want, came qp.Status) {
		v.recv(v.dst.sge(0, 200))
		require.Equal(v.t, want, v.do(v.send()))
		require.Equal(v.t, came, v.came())
	}
	both := func(v *verbs, read, write qp.Status) {
		require.Equal(v.t, write, v.do(v.write()))
		if write != qp.Success { // the connection is over
			w := newVerbs(v.t, nil)
			w.dst = without(w, qp.RemoteWrite)
			v = w
		}
		require.Equal(v.t, read, v.do(v.read()))
	}
	return []verbsCase{
		right("MessagingAccessTest.AllAccess", func(v *verbs) { message(v, qp.Success, qp.Success) }),
		right("MessagingAccessTest.MissingSrcLocalWrite", func(v *verbs) {
			v.src = without(v, qp.LocalWrite)
			message(v, qp.Success, qp.Success)
		}),
		right("MessagingAccessTest.MissingDstLocalWrite", func(v *verbs) {
			v.dst = without(v, qp.LocalWrite)
			message(v, qp.RemoteOpErr, qp.LocalProtErr)
		}),
		right("MessagingAccessTest.MissingDstRemoteWrite", func(v *verbs) {
			v.dst = without(v, qp.RemoteWrite)
			message(v, qp.Success, qp.Success)
		}),
		right("RdmaAccessTest.AllAccess", func(v *verbs) { both(v, qp.Success, qp.Success) }),
		right("RdmaAccessTest.ZeroBasedAccess", func(v *verbs) {
			v.dst = v.reg(v.pd, 4096, allAccess|qp.ZeroBased)
			v.dst.va = 0
			both(v, qp.Success, qp.Success)
		}),
		right("RdmaAccessTest.MissingSrcLocalWrite", func(v *verbs) {
			v.src = without(v, qp.LocalWrite)
			both(v, qp.LocalProtErr, qp.Success)
		}),
		right("RdmaAccessTest.MissingDstRemoteWrite", func(v *verbs) {
			v.dst = without(v, qp.RemoteWrite)
			both(v, qp.Success, qp.RemoteAccessErr)
		}),
		right("RdmaAccessTest.MissingDstRemoteRead", func(v *verbs) {
			v.dst = without(v, qp.RemoteRead)
			both(v, qp.RemoteAccessErr, qp.Success)
		}),
		right("RdmaAccessTest.MissingDstRemoteAtomic", func(v *verbs) {
			v.dst = without(v, qp.RemoteAtomic)
			both(v, qp.Success, qp.Success)
		}),
		one("AtomicAccessTest.AllAccess", qp.Success, func(v *verbs) qp.SendWR { return v.cswap() }),
		one("AtomicAccessTest.MissingSrcLocalWrite", qp.LocalProtErr, func(v *verbs) qp.SendWR { v.src = without(v, qp.LocalWrite); return v.fadd() }),
		one("AtomicAccessTest.MissingDstRemoteWrite", qp.Success, func(v *verbs) qp.SendWR { v.dst = without(v, qp.RemoteWrite); return v.fadd() }),
		one("AtomicAccessTest.MissingDstRemoteRead", qp.Success, func(v *verbs) qp.SendWR { v.dst = without(v, qp.RemoteRead); return v.fadd() }),
		one("AtomicAccessTest.MissingDstRemoteAtomic", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { v.dst = without(v, qp.RemoteAtomic); return v.cswap() }),
		right("AsyncEventTest.ReadRKeyViolation", func(v *verbs) { v.accessEvent(v.read()) }),
		right("AsyncEventTest.WriteRKeyViolation", func(v *verbs) { v.accessEvent(v.write()) }),
		right("AhTest.CreateAndDestroy", func(v *verbs) {
			_, err := v.p.CreateAH(qp.AHAttr{GID: gidOf("192.0.2.2")})
			require.NoError(v.t, err)
		}),
		right("CqTest.Basic CqBatchOpTest.SendSharedCq", func(v *verbs) {
			for range 5 {
				w := v.write()
				w.Flags = qp.Signaled
				require.NoError(v.t, v.a.PostSend(v.now, &w))
			}
			v.run()
			for range 5 {
				require.Equal(v.t, qp.Success, poll(v.t, v.ac).Status)
			}
			none(v.t, v.ac)
		}),
		right("CqBatchOpTest.RecvSharedCq", func(v *verbs) {
			for range 5 {
				v.recv(v.dst.sge(0, 200))
				require.Equal(v.t, qp.Success, v.do(v.send()))
			}
			for range 5 {
				require.Equal(v.t, qp.Success, v.came())
			}
			none(v.t, v.bc)
		}),
	}
}

// accessEvent does what must be refused, and expects the responder's event.
func (v *verbs) accessEvent(w qp.SendWR) {
	require.Equal(v.t, qp.RemoteAccessErr, v.do(badR(w)))
	var e softnic.Event
	require.True(v.t, v.p.NextEvent(&e))
	require.Equal(v.t, v.b, e.QP)
	require.Equal(v.t, qp.EventAccessErr, e.Event)
}

func rdmaBuffers() []verbsCase {
	zero := func(op qp.Op, change func(v *verbs, w *qp.SendWR)) func(v *verbs) qp.SendWR {
		return func(v *verbs) qp.SendWR {
			w := v.rdma(op, 0)
			change(v, &w)
			return w
		}
	}
	same := func(*verbs, *qp.SendWR) {}
	outside := func(v *verbs, w *qp.SendWR) { w.RemoteAddr += 5000 }
	empty := func(v *verbs, w *qp.SendWR) { m := v.reg(v.pd, 0, allAccess); w.RemoteAddr, w.RKey = m.va, m.key }
	emptyOut := func(v *verbs, w *qp.SendWR) { empty(v, w); w.RemoteAddr += 9 }
	bad := func(v *verbs, w *qp.SendWR) { w.RKey ^= 0xff00 }
	send := func(change func(v *verbs, w *qp.SendWR)) func(v *verbs) {
		return func(v *verbs) {
			v.recv(v.dst.sge(0, 100))
			w := v.send()
			w.SGEs[0].Len = 0
			change(v, &w)
			require.Equal(v.t, qp.Success, v.do(w))
			require.Equal(v.t, qp.Success, v.came())
		}
	}
	return []verbsCase{
		right("BufferTest.RegisterZeroByteMr", func(v *verbs) { v.reg(v.pd, 0, allAccess) }),
		right("BufferMrTest.SendZeroByte", send(same)),
		right("BufferMrTest.SendZeroByteFromZeroByteMr", send(func(v *verbs, w *qp.SendWR) { w.SGEs = v.reg(v.pd, 0, allAccess).sge(0, 0) })),
		right("BufferMrTest.SendZeroByteOutsideMr", send(func(v *verbs, w *qp.SendWR) { w.SGEs[0].Addr += 5000 })),
		one("BufferMrTest.ReadExceedFront", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return at(v.read(), -1) }),
		one("BufferMrTest.ReadExceedRear", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return at(v.read(), 4096-99) }),
		one("BufferMrTest.WriteExceedFront", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return at(v.write(), -1) }),
		one("BufferMrTest.WriteExceedRear", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return at(v.write(), 4096-99) }),
		one("BufferMrTest.ReadZeroByte", qp.Success, zero(qp.OpRead, same)),
		one("BufferMrTest.ReadZeroByteOutsideMr", qp.Success, zero(qp.OpRead, outside)),
		one("BufferMrTest.ReadZeroByteFromZeroByteMr", qp.Success, zero(qp.OpRead, empty)),
		one("BufferMrTest.ReadZeroByteOutsideZeroByteMr", qp.Success, zero(qp.OpRead, emptyOut)),
		one("BufferMrTest.ReadZeroByteInvalidRKey", qp.Success, zero(qp.OpRead, bad)),
		one("BufferMrTest.WriteZeroByte", qp.Success, zero(qp.OpWrite, same)),
		one("BufferMrTest.WriteZeroByteOutsideMr", qp.Success, zero(qp.OpWrite, outside)),
		one("BufferMrTest.WriteZeroByteToZeroByteMr", qp.Success, zero(qp.OpWrite, empty)),
		one("BufferMrTest.WriteZeroByteOutsideZeroByteMr", qp.Success, zero(qp.OpWrite, emptyOut)),
		one("BufferMrTest.WriteZeroByteInvalidRKey", qp.Success, zero(qp.OpWrite, bad)),

		right("BufferMwTest.BindExceedFront", func(v *verbs) {
			require.Equal(v.t, qp.MWBindErr, v.bind(v.b, v.alloc(v.pd), v.dst.key, v.dst.va-1, 16, qp.RemoteRead))
		}),
		right("BufferMwTest.BindExceedRear", func(v *verbs) {
			require.Equal(v.t, qp.MWBindErr, v.bind(v.b, v.alloc(v.pd), v.dst.key, v.dst.va+4090, 16, qp.RemoteRead))
		}),
		one("BufferMwTest.ReadExceedFront", qp.RemoteAccessErr, inWindow(qp.OpRead, 100, 99)),
		one("BufferMwTest.ReadExceedRear", qp.RemoteAccessErr, inWindow(qp.OpRead, 100, 301)),
		one("BufferMwTest.ReadZeroByte", qp.Success, inWindow(qp.OpRead, 0, 100)),
		one("BufferMwTest.ReadZeroByteOutsideMw", qp.Success, inWindow(qp.OpRead, 0, 99)),
		one("BufferMwTest.WriteExceedFront", qp.RemoteAccessErr, inWindow(qp.OpWrite, 100, 99)),
		one("BufferMwTest.WriteExceedRear", qp.RemoteAccessErr, inWindow(qp.OpWrite, 100, 301)),
		one("BufferMwTest.WriteZeroByte", qp.Success, inWindow(qp.OpWrite, 0, 100)),
		one("BufferMwTest.WriteZeroByteOutsideMw", qp.Success, inWindow(qp.OpWrite, 0, 99)),

		right("MrTest.RegisterMemory", func(v *verbs) { v.reg(v.pd, 100, allAccess) }),
		right("MrTest.DeregInvalidMr", func(v *verbs) { require.ErrorIs(v.t, v.p.Regions().Deregister(0xabcdef00), qp.ErrNoRegion) }),
		other(whyLocal, "MrTest.RemoteWriteWithoutLocalWrite MrTest.RemoteAtomicWithoutLocalWrite", func(v *verbs) {
			v.dst = v.reg(v.pd, 4096, qp.RemoteWrite|qp.RemoteAtomic)
			require.Equal(v.t, qp.Success, v.do(v.write()))
			require.Equal(v.t, qp.Success, v.do(v.fadd()))
		}),
		right("MrLoopbackTest.OutstandingRecv LoopbackRcQpTest.RecvOnDeregisteredRegion", func(v *verbs) {
			v.recv(v.dst.sge(0, 200))
			require.NoError(v.t, v.p.Regions().Deregister(v.dst.key))
			require.Equal(v.t, qp.RemoteOpErr, v.do(v.send()))
			require.Equal(v.t, qp.LocalProtErr, v.came())
		}),
		right("MrLoopbackTest.OutstandingRead", func(v *verbs) {
			w := v.rdma(qp.OpRead, 4096)
			w.Flags = qp.Signaled
			require.NoError(v.t, v.a.PostSend(v.now, &w))
			require.NoError(v.t, v.p.Regions().Deregister(v.src.key))
			v.run()
			require.Equal(v.t, qp.LocalProtErr, poll(v.t, v.ac).Status)
		}),
		right("MrLoopbackTest.OutstandingWrite", func(v *verbs) {
			w := v.rdma(qp.OpWrite, 4096)
			w.Flags = qp.Signaled
			require.NoError(v.t, v.a.PostSend(v.now, &w))
			require.NoError(v.t, v.p.Regions().Deregister(v.src.key))
			v.run()
			require.Equal(v.t, qp.LocalProtErr, poll(v.t, v.ac).Status)
		}),
	}
}

// inWindow is an operation at off of dst, through a window of bytes 100 to 399.
func inWindow(op qp.Op, n int, off uint64) func(v *verbs) qp.SendWR {
	return func(v *verbs) qp.SendWR {
		w := v.rdma(op, n)
		w.RKey = v.window(v.b, 100, 300, qp.RemoteRead|qp.RemoteWrite|qp.RemoteAtomic)
		w.RemoteAddr += off
		return w
	}
}

func rdmaWindows() []verbsCase {
	rw := qp.RemoteRead | qp.RemoteWrite
	through := func(v *verbs, key uint32) qp.Status {
		w := v.read()
		w.RKey = key
		return v.do(w)
	}
	return []verbsCase{
		right("MwGeneralTest.Alloc", func(v *verbs) { v.alloc(v.pd) }),
		right("MwGeneralTest.Bind MwType2Test.Bind", func(v *verbs) { v.window(v.b, 0, 4096, rw) }),
		right("MwGeneralTest.Read LoopbackRcQpTest.Type2MWRead", func(v *verbs) {
			require.Equal(v.t, qp.Success, through(v, v.window(v.b, 0, 4096, rw)))
			v.filled(v.src.b, 'b', 100)
		}),
		right("LoopbackRcQpTest.Type2MWWrite", func(v *verbs) {
			w := v.write()
			w.RKey = v.window(v.b, 0, 4096, rw)
			require.Equal(v.t, qp.Success, v.do(w))
			v.filled(v.dst.b, 'a', 100)
		}),
		right("MwGeneralTest.ReadZeroBased", func(v *verbs) {
			w := v.read()
			w.RKey, w.RemoteAddr = v.window(v.b, 8, 200, rw|qp.ZeroBased), 0
			require.Equal(v.t, qp.Success, v.do(w))
		}),
		right("MwGeneralTest.BindReadDiffQp MwType2Test.CrossQpRead", func(v *verbs) {
			require.Equal(v.t, qp.RemoteAccessErr, through(v, v.window(v.a, 0, 4096, rw)), "the window is a's, the request comes to b")
		}),
		right("MwGeneralTest.BindInvalidMr", func(v *verbs) {
			require.Equal(v.t, qp.MWBindErr, v.bind(v.b, v.alloc(v.pd), v.dst.key^0xff00, v.dst.va, 10, rw))
		}),
		right("MwGeneralTest.BindInvalidMw", func(v *verbs) {
			require.Equal(v.t, qp.MWBindErr, v.bind(v.b, 0xabcdef00, v.dst.key, v.dst.va, 10, rw))
		}),
		other(whyWindow, "MwGeneralTest.DeregMrWhenBound MwType2Test.DeregMrWhenBound", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rw)
			require.NoError(v.t, v.p.Regions().Deregister(v.dst.key))
			require.Equal(v.t, qp.RemoteAccessErr, through(v, key))
		}),
		right("MwType2Test.UnsignaledBind", func(v *verbs) {
			w := v.alloc(v.pd)
			require.NoError(v.t, v.b.PostSend(v.now, &qp.SendWR{Op: qp.OpBindMW, RKey: w, Region: v.dst.key, RemoteAddr: v.dst.va, Length: 4096, Access: rw}))
			v.run()
			none(v.t, v.bc)
			require.Equal(v.t, qp.Success, through(v, qp.IncRKey(w)))
		}),
		right("MwType2Test.UnsignaledBindError", func(v *verbs) {
			require.NoError(v.t, v.b.PostSend(v.now, &qp.SendWR{Op: qp.OpBindMW, RKey: v.alloc(v.pd), Region: v.dst.key, RemoteAddr: v.dst.va, Length: 5000, Access: rw}))
			v.run()
			require.Equal(v.t, qp.MWBindErr, v.came())
		}),
		right("MwType2Test.BindZeroLengthMw", func(v *verbs) {
			require.Equal(v.t, qp.MWBindErr, v.bind(v.b, v.alloc(v.pd), v.dst.key, v.dst.va, 0, rw))
		}),
		other(whyOwnKeys, "MwType2Test.BindRKeyReuse MwType2Test.RebindToDifferentRKey MwType2Test.DistinctRKeys", func(v *verbs) {
			w := v.alloc(v.pd)
			require.Equal(v.t, qp.Success, v.bind(v.b, w, v.dst.key, v.dst.va, 10, rw))
			require.Equal(v.t, qp.MWBindErr, v.bind(v.b, w, v.dst.key, v.dst.va, 10, rw), "the old key")
		}),
		right("MwType2Test.LocalInvalidate", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rw)
			require.NoError(v.t, v.b.PostSend(v.now, &qp.SendWR{Op: qp.OpLocalInv, Flags: qp.Signaled, RKey: key}))
			v.run()
			require.Equal(v.t, qp.Success, v.came())
			require.Equal(v.t, qp.RemoteAccessErr, through(v, key))
		}),
		right("MwType2Test.UnsignaledLocalInvalidate", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rw)
			require.NoError(v.t, v.b.PostSend(v.now, &qp.SendWR{Op: qp.OpLocalInv, RKey: key}))
			v.run()
			none(v.t, v.bc)
			require.Equal(v.t, qp.RemoteAccessErr, through(v, key))
		}),
		right("MwType2Test.UnsignaledLocalInvalidateError", func(v *verbs) {
			require.NoError(v.t, v.b.PostSend(v.now, &qp.SendWR{Op: qp.OpLocalInv, RKey: 0xabcdef00}))
			v.run()
			require.Equal(v.t, qp.MWBindErr, v.came())
		}),
		right("MwType2Test.DestroyQpWithType2Bound", func(v *verbs) {
			v.window(v.b, 0, 4096, rw)
			v.b.Destroy()
		}),
		right("MwType2Test.RebindToDifferentQp MwType2AdvancedTest.Rebind", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rw)
			require.Equal(v.t, qp.MWBindErr, v.bind(v.a, key, v.dst.key, v.dst.va, 10, rw))
		}),
		right("MwType2Test.CrossQpInvalidate", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rw)
			require.False(v.t, v.p.Regions().Invalidate(qp.RemoteAccess{PD: v.pd, QPN: v.a.Num(), RKey: key}))
			require.Equal(v.t, qp.Success, through(v, key))
		}),
		right("MwType2AdvancedTest.Invalidate", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rw)
			require.Equal(v.t, qp.Success, through(v, key))
			require.NoError(v.t, v.p.Regions().InvalidateLocal(key))
			require.Equal(v.t, qp.RemoteAccessErr, through(v, key))
		}),
		right("MwType2AdvancedTest.Dealloc", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rw)
			require.Equal(v.t, qp.Success, through(v, key))
			require.NoError(v.t, v.p.Regions().Deregister(key))
			require.Equal(v.t, qp.RemoteAccessErr, through(v, key))
		}),
		right("MwBindAccessTest.MwBindAccessTests", func(v *verbs) {
			for bits := range 64 {
				access, granted := qp.Access(bits)&^qp.MWBind, qp.Access(bits)
				for _, right := range []qp.Access{qp.RemoteRead, qp.RemoteWrite, qp.RemoteAtomic, access & (rw | qp.RemoteAtomic)} {
					want := qp.MWBindErr
					if granted&qp.MWBind != 0 {
						want = qp.Success
					}
					w := newVerbs(v.t, nil)
					w.dst = w.reg(w.pd, 4096, granted)
					require.Equal(v.t, want, w.bind(w.b, w.alloc(w.pd), w.dst.key, w.dst.va, 16, right), "region %#x, window %#x", granted, right)
				}
			}
		}),
	}
}

// rereg registers another region under a region's key.
func (v *verbs) rereg(m *mem, pd qp.PD, n int, access qp.Access) {
	m.b = make([]byte, n)
	m.va += 0x8000_0000
	require.NoError(v.t, v.p.Regions().Reregister(m.key, qp.Region{PD: pd, Data: m.b, Addr: m.va, Access: access}))
}

func rdmaRereg() []verbsCase {
	return []verbsCase{
		right("MrTest.ReregMrChangeAddress", func(v *verbs) {
			old := v.write()
			v.rereg(&v.dst, v.pd, 100, allAccess)
			require.Equal(v.t, qp.Success, v.do(v.write()))
			v.filled(v.dst.b, 'a', 100)
			require.Equal(v.t, qp.RemoteAccessErr, v.do(old))
		}),
		right("MrTest.ReregMrChangePd", func(v *verbs) {
			v.rereg(&v.dst, v.p.AllocPD(), 4096, allAccess)
			require.Equal(v.t, qp.RemoteAccessErr, v.do(v.write()))
		}),
		other(whyLocal, "MrTest.ReregMrInvalidPermission", func(v *verbs) {
			v.rereg(&v.dst, v.pd, 4096, qp.RemoteWrite)
			require.Equal(v.t, qp.Success, v.do(v.write()))
		}),
		other(whyEmpty, "MrTest.ReregMrInvalidBuffer", func(v *verbs) {
			v.rereg(&v.dst, v.pd, 0, allAccess)
			require.Equal(v.t, qp.Success, v.do(v.rdma(qp.OpWrite, 0)))
			require.Equal(v.t, qp.RemoteAccessErr, v.do(v.rdma(qp.OpWrite, 1)))
		}),
		right("MrLoopbackTest.ReregMrChangeAccess", func(v *verbs) {
			v.rereg(&v.dst, v.pd, 4096, qp.LocalWrite|qp.RemoteWrite)
			require.Equal(v.t, qp.RemoteAccessErr, v.do(v.read()))
		}),
	}
}

// window1 binds a new type 1 window to all of dst by q, and returns its key.
func (v *verbs) window1(q *softnic.QP) uint32 {
	w, err := v.p.Regions().AllocWindow1(v.pd)
	require.NoError(v.t, err)
	require.Equal(v.t, qp.Success, v.bind(q, w, v.dst.key, v.dst.va, 4096, rights1))
	return qp.IncRKey(w)
}

const rights1 = qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic

func rdmaType1() []verbsCase {
	by := func(w qp.SendWR, key uint32) qp.SendWR { w.RKey = key; return w }
	// Bound by a queue pair of another protection domain, and used by a's and b's.
	otherPD := func(wr func(v *verbs) qp.SendWR) func(v *verbs) qp.SendWR {
		return func(v *verbs) qp.SendWR {
			own, dst := v.pd, v.dst
			v.pd = v.p.AllocPD()
			v.dst = v.reg(v.pd, 4096, allAccess)
			q, cq := v.qp(qp.RC, nil)
			v.connect(q, q, nil)
			ac := v.ac
			v.ac = cq
			key, va := v.window1(q), v.dst.va
			v.ac, v.pd, v.dst = ac, own, dst
			w := by(wr(v), key)
			w.RemoteAddr = va
			return w
		}
	}
	return []verbsCase{
		right("MwType1Test.BindZeroLengthMw", func(v *verbs) {
			key := v.window1(v.b)
			require.Equal(v.t, qp.Success, v.do(by(v.read(), key)))
			require.Equal(v.t, qp.Success, v.bind(v.b, key, v.dst.key, v.dst.va, 0, rights1))
			require.Equal(v.t, qp.RemoteAccessErr, v.do(by(v.read(), key)))
		}),
		right("MwType1Test.UnsignaledBindError", func(v *verbs) {
			w, err := v.p.Regions().AllocWindow1(v.pd)
			require.NoError(v.t, err)
			require.NoError(v.t, v.b.PostSend(v.now, &qp.SendWR{Op: qp.OpBindMW, RKey: w, Region: v.dst.key, RemoteAddr: v.dst.va, Length: 5000, Access: rights1}))
			v.run()
			require.Equal(v.t, qp.MWBindErr, v.came())
		}),
		right("MwType1Test.DestroyQpWithType1Bound", func(v *verbs) {
			v.window1(v.b)
			v.b.Destroy()
		}),
		right("MwType1Test.CrossQpManagement", func(v *verbs) {
			key := v.window1(v.a)
			require.Equal(v.t, qp.Success, v.bind(v.b, key, v.dst.key, v.dst.va, 4096, rights1))
			require.Equal(v.t, qp.Success, v.do(by(v.read(), qp.IncRKey(key))))
		}),
		right("MwType1Test.BindType1WhenQpError MwType2Test.BindType1WhenQpError", func(v *verbs) {
			w, err := v.p.Regions().AllocWindow1(v.pd)
			require.NoError(v.t, err)
			require.NoError(v.t, v.b.Modify(v.now, &qp.Attr{State: qp.Error}, qp.AttrState))
			require.Equal(v.t, qp.WRFlushErr, v.bind(v.b, w, v.dst.key, v.dst.va, 4096, rights1))
		}),
		right("LoopbackRcQpTest.Type1MWRead", func(v *verbs) {
			require.Equal(v.t, qp.Success, v.do(by(v.read(), v.window1(v.b))))
			v.filled(v.src.b, 'b', 100)
		}),
		right("LoopbackRcQpTest.Type1MWWrite", func(v *verbs) {
			require.Equal(v.t, qp.Success, v.do(by(v.write(), v.window1(v.b))))
			v.filled(v.dst.b, 'a', 100)
		}),
		right("LoopbackRcQpTest.Type1MWUnbind", func(v *verbs) {
			key := v.window1(v.b)
			require.Equal(v.t, qp.Success, v.bind(v.b, key, v.dst.key, v.dst.va, 4096, rights1), "bound anew")
			require.Equal(v.t, qp.Success, v.do(by(v.read(), qp.IncRKey(key))))
			require.Equal(v.t, qp.RemoteAccessErr, v.do(by(v.read(), key)))
		}),
		// No NAK, as for a key that does not exist.
		right("LoopbackRcQpTest.SendWithInvalidateType1Rkey", func(v *verbs) {
			key := v.window1(v.b)
			v.recv(v.dst.sge(0, 200))
			w := v.send()
			w.Op, w.RKey = qp.OpSendInv, key
			require.Equal(v.t, qp.RetryExcErr, v.do(w))
			require.NotEqual(v.t, qp.Success, v.came())
			_, ok := v.p.Regions().Remote(qp.RemoteAccess{PD: v.pd, QPN: v.b.Num(), RKey: key, VA: v.dst.va, Len: 1, Right: qp.RemoteRead})
			require.True(v.t, ok, "the peer does not take a type 1 window away")
		}),
		one("PdType1MwTest.ReadMwOtherPd", qp.RemoteAccessErr, otherPD((*verbs).read)),
		one("PdType1MwTest.WriteMwOtherPd", qp.RemoteAccessErr, otherPD((*verbs).write)),
		one("PdType1MwTest.FetchAddMwOtherPd", qp.RemoteAccessErr, otherPD((*verbs).fadd)),
		one("PdType1MwTest.CompSwapMwOtherPd", qp.RemoteAccessErr, otherPD((*verbs).cswap)),
	}
}

// otherSRQ gives b a SRQ of another protection domain, with a receive into dst, which
// region makes.
func (v *verbs) otherSRQ(region func(srq qp.PD) mem) {
	srq, err := v.p.CreateSRQ(4, 0)
	require.NoError(v.t, err)
	pd := v.p.AllocPD()
	srq.SetPD(pd)
	v.dst = region(pd)
	v.b, v.bc = v.qp(qp.RC, func(c *softnic.QPConfig, _ *qp.Attr) { c.SRQ = srq })
	v.a, v.ac = v.qp(qp.RC, nil)
	v.connect(v.a, v.b, nil)
	v.connect(v.b, v.a, nil)
	require.NoError(v.t, srq.PostRecv(&qp.RecvWR{ID: 7, SGEs: v.dst.sge(0, 200)}))
}

func rdmaPDs() []verbsCase {
	other1 := func(v *verbs) mem { return v.reg(v.p.AllocPD(), 4096, allAccess) }
	bindErr := func(window, region bool) func(v *verbs) {
		return func(v *verbs) {
			pd, m := v.pd, v.dst
			if region {
				m = other1(v)
			}
			if window {
				pd = v.p.AllocPD()
			}
			require.Equal(v.t, qp.MWBindErr, v.bind(v.b, v.alloc(pd), m.key, m.va, 16, qp.RemoteRead))
		}
	}
	local := func(wr func(v *verbs) qp.SendWR) func(v *verbs) qp.SendWR {
		return func(v *verbs) qp.SendWR { v.src = other1(v); return wr(v) }
	}
	remote := func(wr func(v *verbs) qp.SendWR) func(v *verbs) qp.SendWR {
		return func(v *verbs) qp.SendWR { v.dst = other1(v); return wr(v) }
	}
	return []verbsCase{
		right("PdTest.AllocPd", func(v *verbs) { require.NotEqual(v.t, v.p.AllocPD(), v.p.AllocPD()) }),
		right("PdBindTest.MwOnOtherPd", bindErr(true, false)),
		right("PdBindTest.MrOnOtherPd", bindErr(false, true)),
		right("PdBindTest.MrMwOnOtherPd", bindErr(true, true)),
		one("PdRcLoopbackMrTest.SendMrOtherPdLocal", qp.LocalProtErr, local((*verbs).send)),
		right("PdRcLoopbackMrTest.SendMrOtherPdRemote", func(v *verbs) {
			v.recv(other1(v).sge(0, 200))
			require.Equal(v.t, qp.RemoteOpErr, v.do(v.send()))
			require.Equal(v.t, qp.LocalProtErr, v.came())
		}),
		one("PdRcLoopbackMrTest.BasicReadMrOtherPdLocal", qp.LocalProtErr, local((*verbs).read)),
		one("PdRcLoopbackMrTest.BasicReadMrOtherPdRemote", qp.RemoteAccessErr, remote((*verbs).read)),
		one("PdRcLoopbackMrTest.BasicWriteMrOtherPdLocal", qp.LocalProtErr, local((*verbs).write)),
		one("PdRcLoopbackMrTest.BasicWriteMrOtherPdRemote", qp.RemoteAccessErr, remote((*verbs).write)),
		one("PdRcLoopbackMrTest.BasicFetchAddMrOtherPdLocal", qp.LocalProtErr, local((*verbs).fadd)),
		one("PdRcLoopbackMrTest.BasicFetchAddMrOtherPdRemote", qp.RemoteAccessErr, remote((*verbs).fadd)),
		one("PdRcLoopbackMrTest.BasicCompSwapMrOtherPdLocal", qp.LocalProtErr, local((*verbs).cswap)),
		one("PdRcLoopbackMrTest.BasicCompSwapMrOtherPdRemote", qp.RemoteAccessErr, remote((*verbs).cswap)),
		not(whyHandles+"; address handles have no protection domain", "PdUdLoopbackTest.SendAhOnOtherPd"),
		// The SRQ has another protection domain than the queue pairs.
		right("PdSrqTest.SrqRecvMrSrqMatch", func(v *verbs) {
			v.otherSRQ(func(pd qp.PD) mem { return v.reg(pd, 4096, allAccess) })
			require.Equal(v.t, qp.Success, v.do(v.send()))
			require.Equal(v.t, qp.Success, v.came())
			v.filled(v.dst.b, 'a', 100)
		}),
		right("PdSrqTest.SrqRecvMrSrqMismatch", func(v *verbs) {
			v.otherSRQ(func(qp.PD) mem { return v.reg(v.pd, 4096, allAccess) })
			require.Equal(v.t, qp.RemoteOpErr, v.do(v.send()))
			require.Equal(v.t, qp.LocalProtErr, v.came())
		}),
		right("PdSrqTest.QpSrqPdMismatchWriteWithImm", func(v *verbs) {
			dst := v.dst
			v.otherSRQ(func(pd qp.PD) mem { return v.reg(pd, 4096, allAccess) })
			v.dst = dst // what is written to is the queue pair's
			w := v.write()
			w.Op = qp.OpWriteImm
			require.Equal(v.t, qp.Success, v.do(w))
			require.Equal(v.t, qp.Success, v.came())
			v.filled(v.dst.b, 'a', 100)
		}),
		right("PdSrqTest.CreateSrq SrqTest.Create", func(v *verbs) {
			_, err := v.p.CreateSRQ(4, 0)
			require.NoError(v.t, err)
		}),
	}
}

// fresh returns a queue pair in Reset, and moves it on to a state.
func (v *verbs) fresh(to qp.State, dest uint32) (*softnic.QP, *softnic.CQ) {
	q, cq := v.qp(qp.RC, nil)
	v.move(q, to, dest)
	return q, cq
}

// steps are the attributes that each state asks for.
var steps = map[qp.State]qp.AttrMask{
	qp.Init: qp.AttrPKey | qp.AttrAccess,
	qp.RTR:  qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer,
	qp.RTS:  qp.AttrSQPSN | qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic,
}

func (v *verbs) move(q *softnic.QP, to qp.State, dest uint32) {
	for _, s := range []qp.State{qp.Init, qp.RTR, qp.RTS} {
		if to == qp.Error && s == qp.Init || s <= to && to <= qp.RTS {
			require.NoError(v.t, v.modify(q, s, dest, steps[s]))
		}
	}
	if to == qp.Error {
		require.NoError(v.t, v.modify(q, qp.Error, dest, 0))
	}
}

func (v *verbs) modify(q *softnic.QP, to qp.State, dest uint32, mask qp.AttrMask) error {
	a := attrTo(dest)
	a.State = to
	return q.Modify(v.now, &a, mask|qp.AttrState)
}

func rdmaQPs() []verbsCase {
	create := func(c qp.Config) func(v *verbs) error {
		return func(v *verbs) error { _, err := v.p.CreateQP(softnic.QPConfig{Config: c}); return err }
	}
	good := func(names string, c qp.Config) verbsCase {
		return right(names, func(v *verbs) { require.NoError(v.t, create(c)(v)) })
	}
	bad := func(names string, c qp.Config) verbsCase {
		return right(names, func(v *verbs) { require.ErrorIs(v.t, create(c)(v), qp.ErrConfig) })
	}
	wrong := func(names string, from, to qp.State) verbsCase {
		return right(names, func(v *verbs) {
			q, _ := v.fresh(from, 0x11)
			require.Error(v.t, v.modify(q, to, 0x11, steps[to]))
			require.Equal(v.t, from, q.State())
		})
	}
	lacks := func(names string, from, to qp.State) verbsCase {
		return right(names, func(v *verbs) {
			for bit := qp.AttrMask(1); bit != 0; bit <<= 1 {
				if steps[to]&bit == 0 {
					continue
				}
				q, _ := v.fresh(from, 0x11)
				require.Error(v.t, v.modify(q, to, 0x11, steps[to]&^bit), "without %#x", bit)
				require.Equal(v.t, from, q.State())
				q.Destroy()
			}
		})
	}
	sendIn := func(names string, s qp.State) verbsCase {
		return other(whyRefused, names, func(v *verbs) {
			q, _ := v.fresh(s, v.b.Num())
			w := v.write()
			require.ErrorIs(v.t, q.PostSend(v.now, &w), qp.ErrState)
		})
	}
	return []verbsCase{
		good("QpTest.Create", qp.Config{MaxSendWR: 8, MaxRecvWR: 8}),
		good("QpTest.CreateWithInlineMax", qp.Config{MaxSendWR: 8, MaxInline: 36}),
		good("QpTest.CreateUd", qp.Config{Type: qp.UD, MaxSendWR: 8, MaxRecvWR: 8}),
		good("QpTest.ZeroSendWr", qp.Config{MaxRecvWR: 8}),
		bad("QpTest.UnknownType", qp.Config{Type: 99}),
		right("QpTest.MaxQpWr", func(v *verbs) {
			require.NoError(v.t, create(qp.Config{MaxSendWR: 1 << 20, MaxRecvWR: 1 << 20})(v))
			require.ErrorIs(v.t, create(qp.Config{MaxSendWR: 1<<20 + 1})(v), qp.ErrConfig)
		}),
		right("QpTest.Modify", func(v *verbs) { q, _ := v.fresh(qp.RTS, 0x11); require.Equal(v.t, qp.RTS, q.State()) }),
		right("QpTest.UdModify", func(v *verbs) {
			q, _ := v.qp(qp.UD, nil)
			for s, m := range []qp.AttrMask{qp.AttrPKey | qp.AttrQKey, 0, qp.AttrSQPSN} {
				require.NoError(v.t, v.modify(q, qp.Init+qp.State(s), 0, m))
			}
			require.Equal(v.t, qp.RTS, q.State())
		}),
		wrong("QpTest.ModifyInvalidResetToRtrTransition", qp.Reset, qp.RTR),
		wrong("QpTest.ModifyInvalidInitToRtsTransition", qp.Init, qp.RTS),
		wrong("QpTest.ModifyInvalidRtsToRtrTransition", qp.RTS, qp.RTR),
		lacks("QpTest.ModifyBadResetToInitStateTransition", qp.Reset, qp.Init),
		lacks("QpTest.ModifyBadInitToRtrStateTransition", qp.Init, qp.RTR),
		lacks("QpTest.ModifyBadRtrToRtsStateTransition", qp.RTR, qp.RTS),
		right("QpTest.ModifyInvalidQp QpTest.DestroyInvalidQp", func(v *verbs) {
			v.b.Destroy()
			require.ErrorIs(v.t, v.modify(v.b, qp.Error, 0, 0), softnic.ErrNoPort)
			v.b.Destroy() // again: nothing
		}),
		right("QpTest.QueryInvalidQp", func(v *verbs) {
			v.b.Destroy()
			require.Nil(v.t, v.p.QP(v.b.Num()))
		}),
		right("QpStateTest.DestroyFromReset", func(v *verbs) { q, _ := v.fresh(qp.Reset, 0); q.Destroy(); require.Nil(v.t, v.p.QP(q.Num())) }),
		right("QpStateTest.DestroyFromInit", func(v *verbs) { q, _ := v.fresh(qp.Init, 0); q.Destroy(); require.Nil(v.t, v.p.QP(q.Num())) }),
		right("QpStateTest.ReuseQp", func(v *verbs) {
			require.Equal(v.t, qp.Success, v.do(v.write()))
			for _, q := range []*softnic.QP{v.a, v.b} {
				require.NoError(v.t, v.modify(q, qp.Reset, 0, 0))
			}
			v.move(v.a, qp.RTS, v.b.Num())
			v.move(v.b, qp.RTS, v.a.Num())
			require.Equal(v.t, qp.Success, v.do(v.write()))
		}),
		right("QpStateTest.QpIdRollover", func(v *verbs) {
			for range 3000 {
				q, _ := v.qp(qp.RC, nil)
				require.NotEqual(v.t, v.a.Num(), q.Num())
				require.NotEqual(v.t, v.b.Num(), q.Num())
				q.Destroy()
			}
			require.Equal(v.t, qp.Success, v.do(v.write()))
		}),
		right("QpStateTest.QpReadWhileTargetEntersRts", func(v *verbs) {
			q, _ := v.fresh(qp.RTR, v.a.Num())
			require.NoError(v.t, v.modify(v.a, qp.Reset, 0, 0))
			v.move(v.a, qp.RTS, q.Num())
			w := v.read()
			require.NoError(v.t, v.a.PostSend(v.now, &w))
			drain(v.p, v.now)
			require.NoError(v.t, v.modify(q, qp.RTS, v.a.Num(), steps[qp.RTS]))
			require.Equal(v.t, qp.Success, v.do(v.read()))
		}),
		sendIn("QpStateTest.PostSendReset", qp.Reset),
		sendIn("QpStateTest.PostSendInit", qp.Init),
		sendIn("QpStateTest.PostSendRtr", qp.RTR),
		other("a receive posted in Reset is refused", "QpStateTest.PostRecvReset", func(v *verbs) {
			q, _ := v.fresh(qp.Reset, 0)
			require.ErrorIs(v.t, q.PostRecv(&qp.RecvWR{}), qp.ErrState)
		}),
		right("QpStateTest.PostRecvInit", func(v *verbs) {
			q, cq := v.fresh(qp.Init, 0)
			require.NoError(v.t, q.PostRecv(&qp.RecvWR{}))
			require.NoError(v.t, v.modify(v.a, qp.Reset, 0, 0))
			v.move(v.a, qp.RTS, q.Num())
			require.Equal(v.t, qp.RetryExcErr, v.do(v.send()))
			none(v.t, cq)
		}),
		right("QpStateTest.PostRecvRtr", func(v *verbs) {
			q, cq := v.fresh(qp.RTR, v.a.Num())
			require.NoError(v.t, q.PostRecv(&qp.RecvWR{SGEs: v.dst.sge(0, 200)}))
			require.NoError(v.t, v.modify(v.a, qp.Reset, 0, 0))
			v.move(v.a, qp.RTS, q.Num())
			require.Equal(v.t, qp.Success, v.do(v.send()))
			require.Equal(v.t, qp.Success, poll(v.t, cq).Status)
		}),
		right("QpStateTest.PostSendErr", func(v *verbs) {
			require.NoError(v.t, v.modify(v.a, qp.Error, 0, 0))
			require.Equal(v.t, qp.WRFlushErr, v.do(v.write()))
		}),
		right("QpStateTest.PostRecvErr", func(v *verbs) {
			require.NoError(v.t, v.modify(v.b, qp.Error, 0, 0))
			v.recv(v.dst.sge(0, 10))
			require.Equal(v.t, qp.WRFlushErr, v.came())
		}),
		right("QpStateTest.PostSendErrConcurrent QpStateTest.PostSendErrDelayed", func(v *verbs) {
			for i := range 4 {
				w := v.write()
				w.Flags = qp.Signaled
				require.NoError(v.t, v.a.PostSend(v.now, &w))
				if i == 1 {
					v.run()
					require.NoError(v.t, v.modify(v.a, qp.Error, 0, 0))
				}
			}
			v.run()
			for _, want := range []qp.Status{qp.Success, qp.Success, qp.WRFlushErr, qp.WRFlushErr} {
				require.Equal(v.t, want, poll(v.t, v.ac).Status)
			}
		}),
		right("QpStateTest.RtsSendToRtr", func(v *verbs) {
			q, _ := v.fresh(qp.RTR, v.a.Num())
			require.NoError(v.t, v.modify(v.a, qp.Reset, 0, 0))
			v.move(v.a, qp.RTS, q.Num())
			require.Equal(v.t, qp.Success, v.do(v.write()))
		}),
		right("QpStateTest.ModRtsToError", func(v *verbs) { require.NoError(v.t, v.modify(v.a, qp.Error, 0, 0)) }),
		right("QpPostTest.OverflowSendWr LoopbackRcQpTest.FullSubmissionQueue", func(v *verbs) {
			w := v.write()
			for range 16 {
				require.NoError(v.t, v.a.PostSend(v.now, &w))
			}
			require.ErrorIs(v.t, v.a.PostSend(v.now, &w), qp.ErrQueueFull)
		}),
		right("ResponderQpStateTest.ResponderNotReadyToReceive", func(v *verbs) {
			for _, s := range []qp.State{qp.Reset, qp.Init, qp.Error} {
				w := newVerbs(v.t, nil)
				q, _ := w.fresh(s, 0x11)
				require.NoError(w.t, w.modify(w.a, qp.Reset, 0, 0))
				w.move(w.a, qp.RTS, q.Num())
				require.Equal(w.t, qp.RetryExcErr, w.do(w.write()), "%v", s)
			}
		}),
		right("LoopbackRcQpTest.QueryQpInitialState", func(v *verbs) {
			q, _ := v.fresh(qp.Reset, 0)
			require.Equal(v.t, qp.Reset, q.State())
		}),
		right("RemoteRcQpStateTest.RemoteRcQpStateTests", func(v *verbs) {
			for _, s := range []qp.State{qp.Reset, qp.Init, qp.RTR, qp.RTS, qp.Error} {
				for name, wr := range map[string]func(*verbs) qp.SendWR{"send": (*verbs).send, "read": (*verbs).read, "write": (*verbs).write,
					"fadd": (*verbs).fadd, "cswap": (*verbs).cswap} {
					w := newVerbs(v.t, nil)
					q, _ := w.fresh(s, w.a.Num())
					if s != qp.Reset {
						require.NoError(w.t, q.PostRecv(&qp.RecvWR{SGEs: w.dst.sge(0, 200)}))
					}
					require.NoError(w.t, w.modify(w.a, qp.Reset, 0, 0))
					w.move(w.a, qp.RTS, q.Num())
					want := qp.RetryExcErr
					if s == qp.RTR || s == qp.RTS {
						want = qp.Success
					}
					require.Equal(w.t, want, w.do(wr(w)), "%s to %v", name, s)
				}
			}
		}),
	}
}

func rdmaRC() []verbsCase {
	// message sends w to a receive, and expects its outcome.
	message := func(names string, want, came qp.Status, set func(v *verbs) (w qp.SendWR, into []qp.SGE)) verbsCase {
		return right(names, func(v *verbs) {
			w, into := set(v)
			v.recv(into)
			require.Equal(v.t, want, v.do(w))
			require.Equal(v.t, came, v.came())
		})
	}
	silent := func(names string, wr func(v *verbs) qp.SendWR) verbsCase {
		return right(names, func(v *verbs) {
			w := wr(v)
			if w.Op == qp.OpSend {
				v.recv(v.dst.sge(0, 200))
			}
			_, any := v.quietly(w)
			require.False(v.t, any)
			require.Zero(v.t, v.a.Outstanding())
		})
	}
	loud := func(names string, want qp.Status, wr func(v *verbs) qp.SendWR) verbsCase {
		return right(names, func(v *verbs) {
			st, any := v.quietly(wr(v))
			require.True(v.t, any)
			require.Equal(v.t, want, st)
		})
	}
	twice := func(names string, wr func(v *verbs) qp.SendWR) verbsCase {
		return other(whyFirst, names, func(v *verbs) { require.Equal(v.t, qp.LocalProtErr, v.do(wr(v))) })
	}
	rights := qp.RemoteRead | qp.RemoteWrite
	inv := func(v *verbs, key uint32) qp.SendWR { w := v.send(); w.Op, w.RKey = qp.OpSendInv, key; return w }
	le := binary.LittleEndian
	atomics := func(names string, before, want, got uint64, wr func(v *verbs) qp.SendWR) verbsCase {
		return right(names, func(v *verbs) {
			le.PutUint64(v.dst.b, before)
			require.Equal(v.t, qp.Success, v.do(wr(v)))
			require.Equal(v.t, want, le.Uint64(v.dst.b))
			require.Equal(v.t, got, le.Uint64(v.src.b))
		})
	}
	add := func(n uint64) func(v *verbs) qp.SendWR {
		return func(v *verbs) qp.SendWR { w := v.fadd(); w.CompareAdd = n; return w }
	}
	swap := func(cmp, new uint64) func(v *verbs) qp.SendWR {
		return func(v *verbs) qp.SendWR { w := v.cswap(); w.CompareAdd, w.Swap = cmp, new; return w }
	}
	return []verbsCase{
		message("LoopbackRcQpTest.Send", qp.Success, qp.Success, func(v *verbs) (qp.SendWR, []qp.SGE) { return v.send(), v.dst.sge(0, 200) }),
		right("LoopbackRcQpTest.SendManyWithOneOutstanding", func(v *verbs) {
			for range 500 {
				v.recv(v.dst.sge(0, 200))
				require.Equal(v.t, qp.Success, v.do(v.send()))
				require.Equal(v.t, qp.Success, v.came())
			}
		}),
		message("LoopbackRcQpTest.SendEmptySgl", qp.Success, qp.Success, func(v *verbs) (qp.SendWR, []qp.SGE) {
			return qp.SendWR{Op: qp.OpSend, SGEs: []qp.SGE{}}, []qp.SGE{}
		}),
		silent("LoopbackRcQpTest.UnsignaledSend", (*verbs).send),
		right("LoopbackRcQpTest.SendLargeChunk", func(v *verbs) {
			v.src, v.dst = v.reg(v.pd, 8<<20, allAccess), v.reg(v.pd, 8<<20, allAccess)
			v.src.b[8<<20-1] = 9
			v.recv(v.dst.sge(0, 8<<20))
			w := v.send()
			w.SGEs = v.src.sge(0, 8<<20)
			require.Equal(v.t, qp.Success, v.do(w))
			require.EqualValues(v.t, 8<<20, poll(v.t, v.bc).ByteLen)
			require.EqualValues(v.t, 9, v.dst.b[8<<20-1])
		}),
		right("LoopbackRcQpTest.SendInlineData LoopbackRcQpTest.WriteInlineData", func(v *verbs) {
			for _, w := range []qp.SendWR{v.send(), v.write()} {
				v.recv(v.dst.sge(0, 200))
				w.SGEs, w.Local, w.Flags = nil, []byte("inline, no key"), qp.Inline|qp.Signaled
				require.NoError(v.t, v.a.PostSend(v.now, &w))
				clear(w.Local)
				v.run()
				require.Equal(v.t, qp.Success, poll(v.t, v.ac).Status)
				require.Equal(v.t, "inline", string(v.dst.b[:6]))
			}
		}),
		right("LoopbackRcQpTest.SendExceedMaxInlineData", func(v *verbs) {
			w := qp.SendWR{Op: qp.OpSend, Local: make([]byte, 65), Flags: qp.Inline}
			require.ErrorIs(v.t, v.a.PostSend(v.now, &w), qp.ErrInline)
		}),
		right("LoopbackRcQpTest.SendInlineDataInvalidOp", func(v *verbs) {
			w := v.read()
			w.Flags |= qp.Inline
			require.ErrorIs(v.t, v.a.PostSend(v.now, &w), qp.ErrInline)
		}),
		right("LoopbackRcQpTest.SendImmData", func(v *verbs) {
			v.recv(v.dst.sge(0, 200))
			w := v.send()
			w.Op, w.Imm = qp.OpSendImm, 0xdeadbeef
			require.Equal(v.t, qp.Success, v.do(w))
			wc := poll(v.t, v.bc)
			require.Equal(v.t, qp.Success, wc.Status)
			require.True(v.t, wc.HasImm)
			require.Equal(v.t, uint32(0xdeadbeef), wc.Imm)
		}),
		right("LoopbackRcQpTest.SendWithInvalidate LoopbackRcQpTest.SendWithInvalidateEmptySgl", func(v *verbs) {
			for _, n := range []int{0, 100} {
				key := v.window(v.b, 0, 4096, rights)
				v.recv(v.dst.sge(0, 200))
				w := inv(v, key)
				w.SGEs = v.src.sge(0, n)
				require.Equal(v.t, qp.Success, v.do(w))
				wc := poll(v.t, v.bc)
				require.True(v.t, wc.HasInv)
				require.Equal(v.t, key, wc.InvRKey)
				_, ok := v.p.Regions().Remote(qp.RemoteAccess{PD: v.pd, QPN: v.b.Num(), RKey: key, VA: v.dst.va, Len: 1, Right: qp.RemoteRead})
				require.False(v.t, ok)
			}
		}),
		right("LoopbackRcQpTest.SendWithInvalidateNoBuffer", func(v *verbs) {
			key := v.window(v.b, 0, 4096, rights)
			require.Equal(v.t, qp.RNRRetryExcErr, v.do(inv(v, key)))
			_, ok := v.p.Regions().Remote(qp.RemoteAccess{PD: v.pd, QPN: v.b.Num(), RKey: key, VA: v.dst.va, Len: 1, Right: qp.RemoteRead})
			require.True(v.t, ok, "nothing was received, nothing is invalidated")
		}),
		// As cards that send no NAK for it (its NoNakOnSendInvalidateErrors): rule RS-17. The
		// requester waits until its retries are over.
		right("LoopbackRcQpTest.SendWithInvalidateBadRkey", func(v *verbs) {
			v.recv(v.dst.sge(0, 200))
			require.Equal(v.t, qp.RetryExcErr, v.do(inv(v, 0xabcdef00)))
			require.NotEqual(v.t, qp.Success, v.came())
		}),
		right("LoopbackRcQpTest.SendWithInvalidateWrongQp", func(v *verbs) {
			key := v.window(v.a, 0, 4096, rights)
			v.recv(v.dst.sge(0, 200))
			require.Equal(v.t, qp.RetryExcErr, v.do(inv(v, key)))
			require.NotEqual(v.t, qp.Success, v.came())
		}),
		message("LoopbackRcQpTest.SendWithTooSmallRecv", qp.RemoteInvalidReqErr, qp.LocalLengthErr, func(v *verbs) (qp.SendWR, []qp.SGE) {
			return v.send(), v.dst.sge(0, 99)
		}),
		one("LoopbackRcQpTest.SendRnr", qp.RNRRetryExcErr, (*verbs).send),
		right("LoopbackRcQpTest.SendRnrInfiniteRetries", func(v *verbs) {
			w := newVerbs(v.t, func(_ *softnic.QPConfig, a *qp.Attr) { a.RNRRetry = 7 })
			s := w.send()
			s.Flags = qp.Signaled
			require.NoError(w.t, w.a.PostSend(w.now, &s))
			w.run()
			none(w.t, w.ac)
			w.recv(w.dst.sge(0, 200))
			w.run()
			require.Equal(w.t, qp.Success, poll(w.t, w.ac).Status)
		}),
		message("LoopbackRcQpTest.BadRecvAddr", qp.RemoteOpErr, qp.LocalProtErr, func(v *verbs) (qp.SendWR, []qp.SGE) {
			s := v.dst.sge(0, 200)
			s[0].Addr += 1 << 30
			return v.send(), s
		}),
		message("LoopbackRcQpTest.RecvPayloadExceedMr", qp.RemoteOpErr, qp.LocalProtErr, func(v *verbs) (qp.SendWR, []qp.SGE) {
			return v.send(), v.dst.sge(4096-50, 200)
		}),
		message("LoopbackRcQpTest.BadRecvLkey", qp.RemoteOpErr, qp.LocalProtErr, func(v *verbs) (qp.SendWR, []qp.SGE) {
			s := v.dst.sge(0, 200)
			s[0].LKey ^= 0xff00
			return v.send(), s
		}),
		right("LoopbackRcQpTest.RecvBufferExceedMr", func(v *verbs) {
			// The suite allows both outcomes; here what the message needs is looked at.
			v.recv(v.dst.sge(4096-150, 200))
			st := v.do(v.send())
			require.Equal(v.t, st == qp.Success, v.came() == qp.Success)
		}),
		one("LoopbackRcQpTest.SendInvalidLkey", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.send()) }),
		loud("LoopbackRcQpTest.UnsignaledSendError", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.send()) }),
		right("LoopbackRcQpTest.BasicRead", func(v *verbs) {
			require.Equal(v.t, qp.Success, v.do(v.read()))
			v.filled(v.src.b, 'b', 100)
			require.EqualValues(v.t, 'a', v.src.b[100])
		}),
		right("LoopbackRcQpTest.BasicReadLargePayload", func(v *verbs) {
			v.src, v.dst = v.reg(v.pd, 1<<20, allAccess), v.reg(v.pd, 1<<20, allAccess)
			v.dst.b[1<<20-1] = 9
			require.Equal(v.t, qp.Success, v.do(v.rdma(qp.OpRead, 1<<20)))
			require.EqualValues(v.t, 9, v.src.b[1<<20-1])
		}),
		silent("LoopbackRcQpTest.UnsignaledRead", (*verbs).read),
		right("LoopbackRcQpTest.QpSigAll", func(v *verbs) {
			w := newVerbs(v.t, func(c *softnic.QPConfig, _ *qp.Attr) { c.SignalAll = true })
			_, any := w.quietly(w.read())
			require.True(w.t, any)
		}),
		one("LoopbackRcQpTest.ReadInvalidLkey", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.read()) }),
		loud("LoopbackRcQpTest.UnsignaledReadError", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.read()) }),
		one("LoopbackRcQpTest.ReadInvalidRkey", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return badR(v.read()) }),
		twice("LoopbackRcQpTest.ReadInvalidRKeyAndInvalidLKey", func(v *verbs) qp.SendWR { return badL(badR(v.read())) }),
		one("LoopbackRcQpTest.ReadUnregisteredRemoteAddress", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return at(v.read(), 1<<30) }),
		right("LoopbackRcQpTest.BasicWrite", func(v *verbs) {
			require.Equal(v.t, qp.Success, v.do(v.write()))
			v.filled(v.dst.b, 'a', 100)
			require.EqualValues(v.t, 'b', v.dst.b[100])
		}),
		right("LoopbackRcQpTest.BasicWriteLargePayload", func(v *verbs) {
			v.src, v.dst = v.reg(v.pd, 1<<20, allAccess), v.reg(v.pd, 1<<20, allAccess)
			v.src.b[1<<20-1] = 9
			require.Equal(v.t, qp.Success, v.do(v.rdma(qp.OpWrite, 1<<20)))
			require.EqualValues(v.t, 9, v.dst.b[1<<20-1])
		}),
		silent("LoopbackRcQpTest.UnsignaledWrite", (*verbs).write),
		right("LoopbackRcQpTest.WriteZeroByteWithImmData LoopbackRcQpTest.WriteImmData", func(v *verbs) {
			for _, n := range []int{0, 100} {
				v.recv(nil)
				w := v.rdma(qp.OpWriteImm, n)
				w.Imm = 77
				require.Equal(v.t, qp.Success, v.do(w))
				wc := poll(v.t, v.bc)
				require.Equal(v.t, qp.OpRecvWrite, wc.Op)
				require.EqualValues(v.t, 77, wc.Imm)
				require.EqualValues(v.t, n, wc.ByteLen)
			}
		}),
		right("LoopbackRcQpTest.WriteImmDataInvalidRKey", func(v *verbs) {
			v.recv(nil)
			require.Equal(v.t, qp.RemoteAccessErr, v.do(badR(v.rdma(qp.OpWriteImm, 100))))
			require.Equal(v.t, qp.LocalAccessErr, v.came())
		}),
		one("LoopbackRcQpTest.WriteImmDataRnR", qp.RNRRetryExcErr, func(v *verbs) qp.SendWR { return v.rdma(qp.OpWriteImm, 100) }),
		one("LoopbackRcQpTest.WriteInvalidLkey", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.write()) }),
		one("LoopbackRcQpTest.WriteInvalidRkey", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return badR(v.write()) }),
		loud("LoopbackRcQpTest.UnsignaledWriteInvalidRkey", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return badR(v.write()) }),
		one("LoopbackRcQpTest.WriteInvalidRKeyAndInvalidLKey", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(badR(v.write())) }),
		one("LoopbackRcQpTest.WriteUnregisteredAddress", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return at(v.write(), 1<<30) }),

		refused(whyPost, "LoopbackRcQpTest.FetchAddInvalidSize", qp.ErrLength, func(v *verbs) qp.SendWR { return v.rdma(qp.OpFetchAdd, 7) }),
		refused(whyPost, "LoopbackRcQpTest.CompareSwapInvalidSize", qp.ErrLength, func(v *verbs) qp.SendWR { return v.rdma(qp.OpCmpSwap, 7) }),
		refused(whyPost, "LoopbackRcQpTest.FetchAddUnaligned", qp.ErrAlign, func(v *verbs) qp.SendWR { return at(v.fadd(), 1) }),
		refused(whyPost, "LoopbackRcQpTest.FetchAddUnalignedInvalidLKey", qp.ErrAlign, func(v *verbs) qp.SendWR { return badL(at(v.fadd(), 1)) }),
		refused(whyPost, "LoopbackRcQpTest.FetchAddUnalignedInvalidRKey", qp.ErrAlign, func(v *verbs) qp.SendWR { return badR(at(v.fadd(), 1)) }),
		refused(whyPost, "LoopbackRcQpTest.CompareSwapUnaligned", qp.ErrAlign, func(v *verbs) qp.SendWR { return at(v.cswap(), 1) }),
		refused(whyPost, "LoopbackRcQpTest.CompareSwapUnalignedInvalidRKey", qp.ErrAlign, func(v *verbs) qp.SendWR { return badR(at(v.cswap(), 1)) }),
		refused(whyPost, "LoopbackRcQpTest.CompareSwapUnalignedInvalidLKey", qp.ErrAlign, func(v *verbs) qp.SendWR { return badL(at(v.cswap(), 1)) }),
		atomics("LoopbackRcQpTest.FetchAddNoOp", 41, 41, 41, add(0)),
		atomics("LoopbackRcQpTest.FetchAddIncrementBy1", 41, 42, 41, add(1)),
		atomics("LoopbackRcQpTest.FetchAddLargeIncrement", 41, 1<<40+41, 41, add(1<<40)),
		right("LoopbackRcQpTest.FetchAddSplitSgl", func(v *verbs) {
			le.PutUint64(v.dst.b, 0x0102030405060708)
			w := v.fadd()
			w.SGEs = append(v.src.sge(0, 4), v.src.sge(100, 4)...)
			require.Equal(v.t, qp.Success, v.do(w))
			require.EqualValues(v.t, 0x05060708, le.Uint32(v.src.b))
			require.EqualValues(v.t, 0x01020304, le.Uint32(v.src.b[100:]))
		}),
		silent("LoopbackRcQpTest.UnsignaledFetchAdd", (*verbs).fadd),
		one("LoopbackRcQpTest.FetchAddInvalidLKey", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.fadd()) }),
		loud("LoopbackRcQpTest.UnsignaledFetchAddError", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.fadd()) }),
		one("LoopbackRcQpTest.FetchAddInvalidRKey", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return badR(v.fadd()) }),
		twice("LoopbackRcQpTest.FetchAddInvalidLKeyAndInvalidRKey", func(v *verbs) qp.SendWR { return badL(badR(v.fadd())) }),
		atomics("LoopbackRcQpTest.CompareSwapNotEqualNoSwap", 41, 41, 41, swap(40, 99)),
		atomics("LoopbackRcQpTest.CompareSwapEqualWithSwap", 41, 99, 41, swap(41, 99)),
		silent("LoopbackRcQpTest.UnsignaledCompareSwap", (*verbs).cswap),
		loud("LoopbackRcQpTest.UnsignaledCompareSwapError", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.cswap()) }),
		one("LoopbackRcQpTest.CompareSwapInvalidLKey", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.cswap()) }),
		one("LoopbackRcQpTest.CompareSwapInvalidRKey", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return badR(v.cswap()) }),
		twice("LoopbackRcQpTest.CompareSwapInvalidRKeyAndInvalidLKey", func(v *verbs) qp.SendWR { return badL(badR(v.cswap())) }),
		right("LoopbackRcQpTest.SgePointerChase", func(v *verbs) {
			// A request may not see what an earlier one of the same list will write: each is
			// looked up when its packets are built.
			w := v.read()
			w.SGEs = v.src.sge(0, 8)
			require.Equal(v.t, qp.Success, v.do(w))
			w = v.write()
			w.SGEs = v.src.sge(0, 8)
			w.RemoteAddr += 8
			require.Equal(v.t, qp.Success, v.do(w))
			v.filled(v.dst.b, 'b', 16)
		}),
		right("LoopbackRcQpTest.RemoteFatalError", func(v *verbs) {
			require.NoError(v.t, v.modify(v.b, qp.Error, 0, 0))
			require.Equal(v.t, qp.RetryExcErr, v.do(v.write()))
			require.Equal(v.t, qp.WRFlushErr, v.do(v.write()))
		}),
		right("LoopbackRcQpTest.FlushErrorPollTogether", func(v *verbs) {
			for i := range 3 {
				w := v.write()
				if w.Flags = qp.Signaled; i == 0 {
					w = badL(w)
				}
				require.NoError(v.t, v.a.PostSend(v.now, &w))
			}
			v.run()
			for _, want := range []qp.Status{qp.LocalProtErr, qp.WRFlushErr, qp.WRFlushErr} {
				require.Equal(v.t, want, poll(v.t, v.ac).Status)
			}
		}),
	}
}

// shared gives v queue pairs whose receives are a SRQ's.
func shared(v *verbs, n int) (*verbs, *softnic.SRQ) {
	w := &verbs{t: v.t, now: v.now, p: v.p, pd: v.pd, src: v.src, dst: v.dst}
	s, err := v.p.CreateSRQ(n, 0)
	require.NoError(v.t, err)
	w.a, w.ac = w.qp(qp.RC, nil)
	w.b, w.bc = w.qp(qp.RC, func(c *softnic.QPConfig, _ *qp.Attr) { c.SRQ = s })
	w.connect(w.a, w.b, nil)
	w.connect(w.b, w.a, nil)
	return w, s
}

func rdmaSRQs() []verbsCase {
	post := func(v *verbs, s *softnic.SRQ) { require.NoError(v.t, s.PostRecv(&qp.RecvWR{SGEs: v.dst.sge(0, 200)})) }
	return []verbsCase{
		right("SrqTest.CreateQpWithSrq", func(v *verbs) { shared(v, 4) }),
		right("SrqTest.PostWrongApi", func(v *verbs) {
			v, _ = shared(v, 4)
			require.ErrorIs(v.t, v.b.PostRecv(&qp.RecvWR{}), qp.ErrSRQ)
		}),
		right("SrqTest.MaxWr SrqTest.ExceedMaxWr SrqTest.ExceedMaxWrInfinitChain", func(v *verbs) {
			_, s := shared(v, 4)
			for range 4 {
				post(v, s)
			}
			require.ErrorIs(v.t, s.PostRecv(&qp.RecvWR{}), qp.ErrQueueFull)
		}),
		right("SrqTest.ExceedDeviceMaxWr", func(v *verbs) { _, err := v.p.CreateSRQ(1<<30, 0); require.Error(v.t, err) }),
		not("a SRQ keeps its size", "SrqTest.ModifyMaxWr"),
		right("SrqTest.Send", func(v *verbs) {
			v, s := shared(v, 4)
			post(v, s)
			require.Equal(v.t, qp.Success, v.do(v.send()))
			require.Equal(v.t, qp.Success, v.came())
		}),
		right("SrqTest.SendManyWithOneOutstanding", func(v *verbs) {
			v, s := shared(v, 4)
			for range 300 {
				post(v, s)
				require.Equal(v.t, qp.Success, v.do(v.send()))
				require.Equal(v.t, qp.Success, v.came())
			}
		}),
		right("SrqTest.QpFlush", func(v *verbs) {
			v, s := shared(v, 4)
			post(v, s)
			post(v, s)
			require.NoError(v.t, v.modify(v.b, qp.Error, 0, 0))
			v.run()
			none(v.t, v.bc) // a SRQ's receives are not a QP's to flush
			require.Equal(v.t, 2, s.Len())
			w, _ := v.qp(qp.RC, func(c *softnic.QPConfig, _ *qp.Attr) { c.SRQ = s })
			require.NoError(v.t, v.modify(v.a, qp.Reset, 0, 0))
			v.move(v.a, qp.RTS, w.Num())
			v.connect(w, v.a, nil)
			require.Equal(v.t, qp.Success, v.do(v.send()))
		}),
		right("SrqTest.SrqLimit", func(v *verbs) {
			v, s := shared(v, 8)
			for range 4 {
				post(v, s)
			}
			s.Arm(3)
			require.Equal(v.t, qp.Success, v.do(v.send()))
			require.False(v.t, s.LimitReached())
			require.Equal(v.t, qp.Success, v.do(v.send()))
			require.True(v.t, s.LimitReached())
			require.False(v.t, s.LimitReached(), "once")
		}),
		right("SrqTest.SendRnr", func(v *verbs) {
			v, _ = shared(v, 4)
			require.Equal(v.t, qp.RNRRetryExcErr, v.do(v.send()))
		}),
		right("SrqRcMultiplexTest.Send SrqRcMultiplexTest.WriteWithImmediate", func(v *verbs) {
			v, s := shared(v, 64)
			for i := range 20 {
				b, cq := v.qp(qp.RC, func(c *softnic.QPConfig, _ *qp.Attr) { c.SRQ = s })
				a, ac := v.qp(qp.RC, nil)
				v.connect(a, b, nil)
				v.connect(b, a, nil)
				post(v, s)
				w := v.send()
				if i%2 == 1 {
					w = v.rdma(qp.OpWriteImm, 10)
				}
				w.Flags = qp.Signaled
				require.NoError(v.t, a.PostSend(v.now, &w))
				v.run()
				require.Equal(v.t, qp.Success, poll(v.t, ac).Status)
				require.Equal(v.t, b.Num(), poll(v.t, cq).QPN)
			}
		}),
	}
}

// datagrams gives v two UD queue pairs.
func datagrams(v *verbs) *verbs {
	w := &verbs{t: v.t, now: v.now, p: v.p, pd: v.pd, src: v.src, dst: v.dst}
	w.a, w.ac = w.qp(qp.UD, nil)
	w.b, w.bc = w.qp(qp.UD, nil)
	w.connect(w.a, w.b, nil)
	w.connect(w.b, w.a, nil)
	return w
}

// datagram is a SEND to b.
func (v *verbs) datagram(ah qp.AHAttr) qp.SendWR {
	w := v.send()
	w.AH, w.RemoteQPN, w.RemoteQKey = qp.NewAddressHandle(ah), v.b.Num(), 0x1111
	return w
}

func rdmaUD() []verbsCase {
	here := qp.AHAttr{GID: gidOf("192.0.2.1")}
	lost := func(names string, set func(v *verbs, w *qp.SendWR)) verbsCase {
		return right(names, func(v *verbs) {
			v = datagrams(v)
			w := v.datagram(here)
			set(v, &w)
			require.Equal(v.t, qp.Success, v.do(w))
			none(v.t, v.bc)
		})
	}
	cannot := func(names string, op qp.Op) verbsCase {
		return refused(whyPost, names, qp.ErrOp, func(v *verbs) qp.SendWR {
			*v = *datagrams(v)
			w := v.datagram(here)
			w.Op, w.SGEs = op, v.src.sge(0, 8)
			w.RemoteAddr, w.RKey = v.dst.va, v.dst.key
			return w
		})
	}
	ready := func(v *verbs, n int) { v.recv(v.dst.sge(0, n)) }
	return []verbsCase{
		right("LoopbackUdQpTest.Send LoopbackUdQpTest.PollMultipleCqe", func(v *verbs) {
			v = datagrams(v)
			for range 3 {
				ready(v, 200)
				require.Equal(v.t, qp.Success, v.do(v.datagram(here)))
			}
			for range 3 {
				wc := poll(v.t, v.bc)
				require.Equal(v.t, qp.Success, wc.Status)
				require.EqualValues(v.t, 140, wc.ByteLen)
				require.Equal(v.t, v.a.Num(), wc.SrcQP)
			}
			v.filled(v.dst.b[40:], 'a', 100)
		}),
		refused(whyPost, "LoopbackUdQpTest.SendLargerThanMtu", qp.ErrLength, func(v *verbs) qp.SendWR {
			*v = *datagrams(v)
			w := v.datagram(here)
			w.SGEs = v.src.sge(0, 1025)
			return w
		}),
		lost("LoopbackUdQpTest.SendRnr", func(*verbs, *qp.SendWR) {}),
		right("LoopbackUdQpTest.SendRnrUnsignaledBatch", func(v *verbs) {
			v = datagrams(v)
			for range 50 {
				_, any := v.quietly(v.datagram(here))
				require.False(v.t, any)
			}
		}),
		right("LoopbackUdQpTest.SendTrafficClass", func(v *verbs) {
			v = datagrams(v)
			ready(v, 200)
			ah := here
			ah.TrafficClass = 0x68
			require.Equal(v.t, qp.Success, v.do(v.datagram(ah)))
			require.Equal(v.t, qp.Success, v.came())
			require.EqualValues(v.t, 0x68, v.dst.b[21], "the IPv4 header of the GRH area")
		}),
		right("LoopbackUdQpTest.SendWithTooSmallRecv", func(v *verbs) {
			v = datagrams(v)
			ready(v, 100)
			require.Equal(v.t, qp.Success, v.do(v.datagram(here)))
		}),
		other("an address that no host has ends the request with a local QP operation error",
			"LoopbackUdQpTest.SendInvalidAh", func(v *verbs) {
				v = datagrams(v)
				require.Equal(v.t, qp.LocalQPOpErr, v.do(v.datagram(qp.AHAttr{GID: gidOf("192.0.2.77")})))
			}),
		lost("LoopbackUdQpTest.SendInvalidQpn", func(v *verbs, w *qp.SendWR) { ready(v, 200); w.RemoteQPN = 0x777 }),
		lost("LoopbackUdQpTest.SendInvalidQKey", func(v *verbs, w *qp.SendWR) { ready(v, 200); w.RemoteQKey = 0x777 }),
		cannot("LoopbackUdQpTest.Read", qp.OpRead),
		cannot("LoopbackUdQpTest.Write", qp.OpWrite),
		cannot("LoopbackUdQpTest.FetchAdd", qp.OpFetchAdd),
		cannot("LoopbackUdQpTest.CompareSwap", qp.OpCmpSwap),
		right("AdvancedLoopbackTest.RcSendToUd", func(v *verbs) {
			u := datagrams(v)
			u.recv(v.dst.sge(0, 200))
			require.NoError(v.t, v.modify(v.a, qp.Reset, 0, 0))
			v.move(v.a, qp.RTS, u.b.Num())
			require.Equal(v.t, qp.RetryExcErr, v.do(v.send()))
			none(v.t, u.bc)
		}),
		right("AdvancedLoopbackTest.UdSendToRc", func(v *verbs) {
			v.recv(v.dst.sge(0, 200))
			u := datagrams(v)
			w := u.datagram(here)
			w.RemoteQPN = v.b.Num()
			require.Equal(v.t, qp.Success, u.do(w))
			none(v.t, v.bc)
		}),
	}
}
