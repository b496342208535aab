package crc

func sum(pkt []byte) uint32 { return sumGeneric(pkt) }

func update(r uint32, p []byte) uint32 { return updateGeneric(r, p) }

func appendPayload(buf []byte, start int, payload []byte, pad int) []byte {
	return appendPayloadGeneric(buf, start, payload, pad)
}

func mulmod(a, b uint32) uint32 { return mulmodGeneric(a, b) }
