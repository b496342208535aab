// Package captures holds small real captures, embedded: the starting points of fuzz targets
// and tests. README.md names the source of each.
package captures

import (
	"embed"
	"strings"
)

// Files holds NAME.pcap.
//
//go:embed *.pcap
var Files embed.FS

//go:embed tshark.txt
var dissections string

//go:embed consoles.txt
var consoles string

// Dissection returns tshark's output for the frames of a capture: a line of field names, then
// a line for each frame, with tabs between fields. It is "" if there is none.
func Dissection(name string) string { return section(dissections, name) }

// Console returns the consoles of both guests during a capture, or "".
func Console(name string) string { return section(consoles, name) }

// section returns what follows the line "== NAME" up to the next such line.
func section(text, name string) string {
	_, rest, ok := strings.Cut("\n"+text, "\n== "+name+"\n")
	if !ok {
		return ""
	}
	if i := strings.Index("\n"+rest, "\n== "); i >= 0 {
		rest = rest[:i]
	}
	return rest
}
