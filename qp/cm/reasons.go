package cm

var reasonSentences = map[Reason]string{
	ReasonNoQP:                           "the peer has no queue pair left",
	ReasonNoEEC:                          "the peer has no EE context left",
	ReasonNoResources:                    "the peer lacks resources for the connection",
	ReasonTimeout:                        "the peer waited in vain for a response and gave up",
	ReasonUnsupportedRequest:             "the peer does not support what was asked for",
	ReasonInvalidCommID:                  "the peer knows no such communication ID",
	ReasonInvalidCommInstance:            "the peer's call has another pair of communication IDs",
	ReasonInvalidServiceID:               "nobody listens there: check address, port and port space",
	ReasonInvalidTransportServiceType:    "the peer does not serve this kind of queue pair",
	ReasonStaleConnection:                "the peer still has a connection with this queue pair: try again in a moment",
	ReasonRDCDoesNotExist:                "there is no reliable datagram channel",
	ReasonInvalidPrimaryRemotePortGID:    "the GID asked for is not of the peer's port",
	ReasonInvalidPrimaryRemotePortLID:    "the LID asked for is not of the peer's port",
	ReasonInvalidPrimarySL:               "the peer refuses the service level",
	ReasonInvalidPrimaryTrafficClass:     "the peer refuses the traffic class",
	ReasonInvalidPrimaryHopLimit:         "the peer refuses the hop limit",
	ReasonInvalidPrimaryPacketRate:       "the peer cannot keep the packet rate",
	ReasonInvalidAlternateRemotePortGID:  "the alternate GID is not of the peer's port",
	ReasonInvalidAlternateRemotePortLID:  "the alternate LID is not of the peer's port",
	ReasonInvalidAlternateSL:             "the peer refuses the alternate service level",
	ReasonInvalidAlternateTrafficClass:   "the peer refuses the alternate traffic class",
	ReasonInvalidAlternateHopLimit:       "the peer refuses the alternate hop limit",
	ReasonInvalidAlternatePacketRate:     "the peer cannot keep the alternate packet rate",
	ReasonPortCMRedirection:              "the service is at another port, which the additional information names",
	ReasonPortRedirection:                "the service is at another port of the peer, which the additional information names",
	ReasonInvalidPathMTU:                 "the peer refuses the path MTU; the additional information may name one that it takes",
	ReasonInsufficientResponderResources: "the peer takes fewer READs and atomics at a time",
	ReasonConsumer:                       "the program at the peer refused; the private data may say why",
	ReasonRNRRetryCount:                  "the peer refuses the RNR retry count",
	ReasonDuplicateLocalCommID:           "the peer has a call with this communication ID already",
	ReasonInvalidClassVersion:            "the peer speaks another version of connection management",
	ReasonInvalidPrimaryFlowLabel:        "the peer refuses the flow label",
	ReasonInvalidAlternateFlowLabel:      "the peer refuses the alternate flow label",
	ReasonVendorOptionNotSupported:       "the peer does not support the vendor's options",
}

// Sentence returns what the reason means and what to do, for a person to read.
func (r Reason) Sentence() string {
	if s := reasonSentences[r]; s != "" {
		return s
	}
	return "the peer gave a reason without a name"
}
