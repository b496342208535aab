// Package fuzz holds fuzz targets that go across packages: frames into a port and
// what comes out, mutated captures into the watcher, two machines with a hostile
// link between them. The targets of single packages are beside their code.
//
// Below it are the mutator, a package for users; the command mutate, which runs
// it on captures; the command corpus, which makes seeds for every target of the
// module; and the captures.
package fuzz
