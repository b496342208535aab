// Package lab is a kit of experiments with simulated networks: ready-made
// topologies, flows that are watched, and statistics of what happened.
package lab
