// Package readme holds tests of the module's Markdown pages: programs in them
// build and run, and links lead somewhere.
package readme
