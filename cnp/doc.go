// Package cnp holds the congestion notification packet (CNP) of RoCE v2 and
// DCQCN, the congestion control that rests on it:
//
//   - [CongestionPoint], in a switch: marks packets as the queue grows;
//   - [NotificationPoint], in the receiver: sends CNPs for marked packets, at
//     most one per flow and gap;
//   - [ReactionPoint], in the sender: cuts a flow's rate on a CNP, raises it
//     again with time and bytes sent; [Pacer] spaces packets at that rate.
//
// The wire format is [Header], by Annex A17 of the InfiniBand Architecture. The
// annex says that a rate is to fall and rise, not how. DCQCN says how, and two
// algorithms bear that name. Both are here, behind one [ReactionPoint] and one
// [Params].
//
// # The machines
//
// Like all state machines of this module they do no I/O, start no goroutine, and have no
// clock and no randomness: time is the first argument of a method, and the next time to
// call comes out of Deadline. They allocate nothing after their constructors. State is
// integers throughout, so that equal calls give equal states on every architecture. Rates
// are whole bits per second.
//
// # The presets
//
// [Paper] is the algorithm and the values of Zhu et al., SIGCOMM 2015. [NVIDIA]
// is what ConnectX-5 and 6 Dx adapters do, with their defaults, [ConnectX4Lx] the
// same with another scope of the CNP gap. [NS3] and [NS3Paper] are what HPCC's ns-3
// code does, which many papers compare with as DCQCN: NVIDIA's by the timer only.
// Where they differ:
//
//	                 Paper                             NVIDIA                          NS3
//	a CNP            cuts at once                      sets two flags, looked at       as NVIDIA; comes as a
//	                                                   when the periods end            flag of each ACK
//	how often cut    as often as CNPs come: the        once per 4 us (monitor period)  as NVIDIA
//	                 receiver's 50 us gap holds back
//	gap between CNPs 50 us for each QP                 4 us for the port               none
//	depth of cut     alpha/2, alpha before its update  alpha/2, at most a half         alpha/2
//	target on cut    the rate before the cut           kept, unless bytes or time      kept, unless time
//	                                                   raised it since the last cut    raised it
//	alpha            g = 1/256;                        g = 5/1024;                     g = 1/256;
//	                 55 us periods from the last CNP   1 us periods, free-running      as NVIDIA
//	fast recovery    4 steps (F = 5)                   1 step (threshold 1)            1 step
//	stage counted    before it is looked at            after                           after
//	increase         40 Mb/s per 55 us or 10 MB        5 Mb/s per 300 us or 2 MB       5 Mb/s x line/25 Gb/s
//	                                                                                   per 300 us
//	hyper increase   200 Mb/s, 400, 600 ...            50 Mb/s each time               50 Mb/s x line/25 Gb/s
//	at line rate     released                          released                        limiter stays
//	floor            10 Mb/s                           1 Mb/s                          1 Gb/s
//
// The difference comes from what a CNP is to each. In the paper it is the event that cuts,
// so the receiver has to hold CNPs 50 us apart, and all periods are as long. Adapters send
// CNPs 4 us apart or less; one there is a bit that says whether a short period was
// congested, and the two periods give the pace. So NVIDIA's alpha decays in about 200 us as
// far as the paper's in 14 ms: the first CNP halves a rate in both, but one that comes a
// millisecond after the last cuts 47 % in the paper's (alpha 0.93) and 0.6 % in NVIDIA's
// (alpha 0.012 when the period ends).
//
// # Worked numbers
//
// Paper preset, 40 Gb/s, CNPs at 0 and 55 us:
//
//	first CNP                  RC 20          RT 40  alpha 1
//	55 us without a CNP                              alpha 0.99609375
//	second CNP                 RC 10.0390625  RT 20  alpha 0.9961090087890625
//	timer, four times          RC 15.01953125, 17.509765625, 18.7548828125, 19.37744140625
//	timer, fifth time          RC 19.708720703125    RT 20.04
//
// The cut uses alpha before its update: the other order gives 10.0389099.
//
// NVIDIA preset, 40 Gb/s, one CNP at 0, with g = 5/1024:
//
//	1 us   alpha 1 - (1-g)/1024 = 0.999028 (marked)
//	2, 3   alpha 0.994150, 0.989296
//	4 us   alpha 0.984465; RC 40 (1 - alpha/2) = 20.310693, RT 40 (kept)
//	304 us RC 30.155345
//	604 us RC 35.077673 (RT would be 40.005, but the line is 40)
//
// NS3 preset, 100 Gb/s, CNPs at 0 and 5 us, with g = 1/256:
//
//	4 us   alpha (1-g)^4 = 0.984466; RC 100 (1 - alpha/2) = 50.776684, RT 100
//	8 us   alpha 0.973050, the second CNP counted; RC 26.072565, RT 100 (kept)
//
// # Resolution, order, late calls
//
// A rate is rounded up to a whole bit per second by an increase and by a cut, so
// that a half-way step reaches its target. Alpha has 31 fractional bits (see
// AlphaBits) and rounds down: a step loses less than 2^-31, and all steps together
// less than e = 2^-31/g + 2^-31, about 2^-23 in the presets, as later steps shrink
// what was lost before. Against the equations in real numbers a rate is off by at
// most e of itself and 2 b/s for each CNP so far; a test holds that over random
// calls.
//
// Events at the same time happen in the order alpha, cut, increase, and a cut restarts the
// increase timer, so that the increase does not happen. In the paper preset, whose two
// timers are both 55 us, a CNP at that time therefore uses the updated alpha and the rate
// before the increase, unless Tick was called with that time before it.
//
// A late call runs all periods that it missed, as if there had been a call for each
// of them. That takes at most 4,221 multiplications for alpha in the paper
// preset (3,420 in NVIDIA's, 15,489 with the slowest g there is), after which alpha
// is 0 and costs nothing; and at most some 100 steps of rate with the
// presets (4,700 for the worst parameters), because the gap
// between RC and RT halves until the additive steps repeat, and many of them are
// done in one multiplication.
//
// # Choices that the sources leave open
//
// What becomes of the limiter at line rate is a parameter, Release; each preset names its
// value. NVIDIA's two periods run from the CNP that started the limiter. RpgMaxRate below
// the line rate caps a flow from that CNP on; with Release a flow that has reached it is
// without limit. RpgByteReset 0 switches byte stages off.
package cnp
