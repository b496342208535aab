// Package fuzz holds fuzz targets that go across packages: frames into a port and
// what comes out, mutated captures into the watcher, two machines with a hostile
// link between them. The targets of single packages are beside their code.
//
// Below it are the mutator, a package for users; the command mutate, which runs
// it on captures; the package seeds, which feeds fuzz targets from captures, and
// the command corpus, which writes such seeds to files; the command libfuzzer,
// which builds the targets for another engine; and the captures.
package fuzz
