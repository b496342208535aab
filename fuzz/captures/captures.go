// Package captures holds small real captures, embedded: what fuzz targets and
// tests start from. README.md says where each is from.
package captures

import "embed"

// Files holds NAME.pcap.
//
//go:embed *.pcap
var Files embed.FS
