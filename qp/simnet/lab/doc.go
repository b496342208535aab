// Package lab is a kit of experiments with simulated networks:
//
//   - topologies ([Topology]: star, dumbbell, two- and three-tier Clos networks, ring, or
//     from a file);
//   - workloads: flow sizes that papers use ([WebSearch], [Hadoop], [Storage]), arrivals
//     at a load ([Poisson]), collectives ([RingAllReduce], [AllToAll], [Incast]), or from a
//     file ([ReadTransfers]);
//   - what runs them ([Play], [Scenario]) and what came out: completion times against the
//     ideal ([Slowdowns]), time series of queues, rates and pauses ([Report]), as tables,
//     CSV and JSON;
//   - sweeps of independent networks over all cores, and over machines ([Sweep], [Shard]).
//
// Everything is determined by its seeds: the same again on any machine, for any number
// of threads and shards.
package lab
