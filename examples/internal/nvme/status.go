package nvme

import "fmt"

// Status is the status of a completion: the code in bits 0 to 7, its type in bits 8
// to 10, More and Do Not Retry in bits 13 and 14 (Base 3.3.3.2).
type Status uint16

// DNR means that the same command would fail again.
const DNR Status = 0x4000

// Statuses that the target and the host use.
const (
	Success              Status = 0x000
	InvalidOpcode        Status = 0x001
	InvalidField         Status = 0x002
	DataTransferError    Status = 0x004
	InternalError        Status = 0x006
	AbortRequested       Status = 0x007
	InvalidNamespace     Status = 0x00b
	SequenceError        Status = 0x00c
	SGLLengthInvalid     Status = 0x00f
	SGLTypeInvalid       Status = 0x011
	SGLOffsetInvalid     Status = 0x016
	LBAOutOfRange        Status = 0x080
	QueueIDInvalid       Status = 0x101
	AsyncEventLimit      Status = 0x105
	InvalidLogPage       Status = 0x109
	FeatureNotSaveable   Status = 0x10d
	FeatureNotChangeable Status = 0x10e
	ConnectFormat        Status = 0x180
	ConnectInvalidParam  Status = 0x182
	ConnectInvalidHost   Status = 0x184
	WriteFault           Status = 0x280
	UnrecoveredReadError Status = 0x281
	statusCode           Status = 0x7ff
)

var statuses = map[Status]string{
	Success:              "success",
	InvalidOpcode:        "invalid command opcode",
	InvalidField:         "invalid field in command",
	DataTransferError:    "data transfer error",
	InternalError:        "internal error",
	AbortRequested:       "command abort requested",
	InvalidNamespace:     "invalid namespace or format",
	SequenceError:        "command sequence error",
	SGLLengthInvalid:     "data SGL length invalid",
	SGLTypeInvalid:       "SGL descriptor type invalid",
	SGLOffsetInvalid:     "SGL offset invalid",
	LBAOutOfRange:        "LBA out of range",
	QueueIDInvalid:       "invalid queue identifier",
	AsyncEventLimit:      "asynchronous event request limit exceeded",
	InvalidLogPage:       "invalid log page",
	FeatureNotSaveable:   "feature identifier not saveable",
	FeatureNotChangeable: "feature not changeable",
	ConnectFormat:        "connect: incompatible format",
	ConnectInvalidParam:  "connect: invalid parameters",
	ConnectInvalidHost:   "connect: invalid host",
	WriteFault:           "write fault",
	UnrecoveredReadError: "unrecovered read error",
}

// String returns the specification's words, or numbers.
func (s Status) String() string {
	t := statuses[s&statusCode]
	if t == "" {
		t = fmt.Sprintf("status type %d code %#02x", s>>8&7, uint8(s))
	}
	if s&DNR != 0 {
		t += ", do not retry"
	}
	return t
}

// Is reports whether s is t, whatever their More and Do Not Retry say.
func (s Status) Is(t Status) bool { return s&statusCode == t&statusCode }

// Error is a command that the controller did not do.
type Error struct {
	Command string
	Status  Status
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("nvme: %s: %v", e.Command, e.Status) }
