// Package fuzz holds fuzz targets that involve several packages: frames sent to a port and
// its responses, mutated captures passed to the watcher, two machines connected by a hostile
// link. The targets of single packages are next to their code.
//
// Below it are the mutator, a package for users; the command mutate, which runs it on
// captures; the package seeds, which feeds fuzz targets from captures, and the command
// corpus, which writes such seeds to files; the command libfuzzer, which builds the targets
// for another engine; and the captures.
package fuzz
