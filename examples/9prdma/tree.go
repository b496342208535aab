package main

import (
	"cmp"
	"os"
	"path"
	"syscall"

	"github.com/hugelgupf/p9/fsimpl/templatefs"
	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"
	"golang.org/x/sys/unix"
)

// tree is a folder as the 9P server needs it. p9's own localfs does not change permissions
// and times, ends long folders after one message, follows links out of the folder, and never
// releases a lock.
type tree struct{ root *os.Root }

// Attach implements p9.Attacher.
func (t tree) Attach() (p9.File, error) { return &node{root: t.root, path: "."}, nil }

// node is a file, folder or link, which a client has walked to and may have opened. The
// server ensures that a client walks through folders only, never through a link, and calls
// Renamed for a node that was moved.
type node struct {
	p9.DefaultWalkGetAttr
	templatefs.NoopFile // no extended attributes, no device nodes
	root                *os.Root
	path                string // in root
	file                *os.File
	entries             p9.Dirents // of an open folder
}

// child returns the node of a name in a folder.
func (n *node) child(name string) *node { return &node{root: n.root, path: path.Join(n.path, name)} }

// stat returns the attributes of the node, not of the target of a link.
func (n *node) stat() (p9.QID, *syscall.Stat_t, error) {
	var info os.FileInfo
	var err error
	if n.file != nil {
		info, err = n.file.Stat()
	} else {
		info, err = n.root.Lstat(n.path)
	}
	if err != nil {
		return p9.QID{}, nil, err
	}
	s := info.Sys().(*syscall.Stat_t)
	return p9.QID{Type: p9.ModeFromOS(info.Mode()).QIDType(), Version: uint32(info.ModTime().UnixMicro()), Path: s.Ino}, s, nil
}

func (n *node) Walk(names []string) ([]p9.QID, p9.File, error) {
	to := n.child("")
	var qids []p9.QID
	for _, name := range names {
		to = to.child(name)
		qid, _, err := to.stat()
		if err != nil {
			return nil, nil, err
		}
		qids = append(qids, qid)
	}
	return qids, to, nil
}

func (n *node) GetAttr(mask p9.AttrMask) (p9.QID, p9.AttrMask, p9.Attr, error) {
	qid, s, err := n.stat()
	if err != nil {
		return qid, p9.AttrMask{}, p9.Attr{}, err
	}
	return qid, mask, p9.Attr{Mode: p9.FileMode(s.Mode), UID: p9.UID(s.Uid), GID: p9.GID(s.Gid), NLink: p9.NLink(s.Nlink), RDev: p9.Dev(s.Rdev),
		Size: uint64(s.Size), BlockSize: uint64(s.Blksize), Blocks: uint64(s.Blocks),
		ATimeSeconds: uint64(s.Atim.Sec), ATimeNanoSeconds: uint64(s.Atim.Nsec),
		MTimeSeconds: uint64(s.Mtim.Sec), MTimeNanoSeconds: uint64(s.Mtim.Nsec),
		CTimeSeconds: uint64(s.Ctim.Sec), CTimeNanoSeconds: uint64(s.Ctim.Nsec)}, nil
}

// mode returns permissions in the form of package os. p9 removes set-user-ID and
// set-group-ID.
func mode(m p9.FileMode) os.FileMode {
	perm := os.FileMode(m & 0o777)
	if m&0o1000 != 0 {
		perm |= os.ModeSticky
	}
	return perm
}

func (n *node) SetAttr(valid p9.SetAttrMask, a p9.SetAttr) error {
	if valid.Size {
		f := n.file
		if f == nil {
			var err error
			if f, err = n.open(os.O_WRONLY); err != nil {
				return err
			}
			defer f.Close()
		}
		if err := f.Truncate(int64(a.Size)); err != nil {
			return err
		}
	}
	if valid.UID || valid.GID {
		uid, gid := -1, -1
		if valid.UID {
			uid = int(a.UID)
		}
		if valid.GID {
			gid = int(a.GID)
		}
		if err := n.root.Lchown(n.path, uid, gid); err != nil {
			return err
		}
	}
	if valid.Permissions { // after the owner, whose change clears bits
		if _, s, err := n.stat(); err != nil {
			return err
		} else if s.Mode&syscall.S_IFMT == syscall.S_IFLNK {
			return linux.EOPNOTSUPP
		}
		if err := n.root.Chmod(n.path, mode(a.Permissions)); err != nil {
			return err
		}
	}
	if !valid.ATime && !valid.MTime {
		return nil
	}
	// Not Chtimes, which cannot set the current time of the file system, and follows links.
	dir, err := n.root.Open(path.Dir(n.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	at := func(valid, given bool, sec, nsec uint64) unix.Timespec {
		switch {
		case !valid:
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		case !given:
			return unix.Timespec{Nsec: unix.UTIME_NOW}
		}
		return unix.NsecToTimespec(int64(sec)*1e9 + int64(nsec))
	}
	return unix.UtimesNanoAt(int(dir.Fd()), path.Base(n.path), []unix.Timespec{
		at(valid.ATime, valid.ATimeNotSystemTime, a.ATimeSeconds, a.ATimeNanoSeconds),
		at(valid.MTime, valid.MTimeNotSystemTime, a.MTimeSeconds, a.MTimeNanoSeconds)}, unix.AT_SYMLINK_NOFOLLOW)
}

// open opens a file or folder, and nothing else: devices and pipes are handled by the client.
func (n *node) open(flags int) (*os.File, error) {
	f, err := n.root.OpenFile(n.path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		f.Close()
		return nil, cmp.Or(err, error(linux.EINVAL))
	}
	return f, nil
}

// usable are the flags of an open that the server applies. The client handles appending: it
// gives the offset of each write.
const usable = syscall.O_ACCMODE | os.O_TRUNC

func (n *node) Open(flags p9.OpenFlags) (p9.QID, uint32, error) {
	f, err := n.open(int(flags) & usable)
	if err != nil {
		return p9.QID{}, 0, err
	}
	n.file = f
	qid, _, err := n.stat()
	return qid, 0, err
}

func (n *node) Create(name string, flags p9.OpenFlags, perm p9.FileMode, _ p9.UID, _ p9.GID) (p9.File, p9.QID, uint32, error) {
	c := n.child(name)
	f, err := n.root.OpenFile(c.path, int(flags)&usable|os.O_CREATE|os.O_EXCL, mode(perm).Perm())
	if err != nil {
		return nil, p9.QID{}, 0, err
	}
	c.file = f
	qid, _, err := c.stat()
	return c, qid, 0, err
}

func (n *node) Close() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}

func (n *node) ReadAt(b []byte, off int64) (int, error)  { return n.file.ReadAt(b, off) }
func (n *node) WriteAt(b []byte, off int64) (int, error) { return n.file.WriteAt(b, off) }
func (n *node) FSync() error                             { return n.file.Sync() }

// made returns the QID of a new entry in a folder.
func (n *node) made(name string, err error) (p9.QID, error) {
	if err != nil {
		return p9.QID{}, err
	}
	qid, _, err := n.child(name).stat()
	return qid, err
}

func (n *node) Mkdir(name string, perm p9.FileMode, _ p9.UID, _ p9.GID) (p9.QID, error) {
	return n.made(name, n.root.Mkdir(n.child(name).path, mode(perm).Perm()))
}

func (n *node) Symlink(to, name string, _ p9.UID, _ p9.GID) (p9.QID, error) {
	return n.made(name, n.root.Symlink(to, n.child(name).path))
}

func (n *node) Link(to p9.File, name string) error {
	return n.root.Link(to.(*node).path, n.child(name).path)
}

func (n *node) Readlink() (string, error) { return n.root.Readlink(n.path) }

func (n *node) RenameAt(old string, dir p9.File, name string) error {
	return n.root.Rename(n.child(old).path, dir.(*node).child(name).path)
}

func (n *node) Renamed(dir p9.File, name string) { n.path = dir.(*node).child(name).path }

func (n *node) UnlinkAt(name string, flags uint32) error {
	c := n.child(name)
	_, s, err := c.stat()
	if err != nil {
		return err
	}
	switch isDir, want := s.Mode&syscall.S_IFMT == syscall.S_IFDIR, flags&unix.AT_REMOVEDIR != 0; {
	case want && !isDir:
		return linux.ENOTDIR
	case isDir && !want:
		return linux.EISDIR
	}
	return n.root.Remove(c.path)
}

// Readdir returns entries from an offset on: the folder as it was when a client started to
// read it. The server sends as many as fit a message of size bytes.
func (n *node) Readdir(offset uint64, size uint32) (p9.Dirents, error) {
	if offset == 0 {
		dir, err := n.root.Open(n.path)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		list, err := dir.ReadDir(-1)
		if err != nil {
			return nil, err
		}
		n.entries = n.entries[:0]
		for _, e := range list {
			qid, _, err := n.child(e.Name()).stat()
			if err != nil {
				continue // it was removed meanwhile
			}
			n.entries = append(n.entries, p9.Dirent{QID: qid, Type: qid.Type, Name: e.Name(), Offset: uint64(len(n.entries)) + 1})
		}
	}
	rest := n.entries[min(offset, uint64(len(n.entries))):]
	return rest[:min(len(rest), int(size/24)+1)], nil // an entry has 24 bytes and its name
}

func (n *node) StatFS() (p9.FSStat, error) {
	f, err := n.root.Open(".")
	if err != nil {
		return p9.FSStat{}, err
	}
	defer f.Close()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return p9.FSStat{}, err
	}
	return p9.FSStat{Type: 0x01021997, BlockSize: uint32(s.Bsize), Blocks: s.Blocks, BlocksFree: s.Bfree, BlocksAvailable: s.Bavail,
		Files: s.Files, FilesFree: s.Ffree, NameLength: uint32(s.Namelen)}, nil
}

// Lock locks a range for the open file, without waiting: a client that wants to wait retries.
func (n *node) Lock(_ int, kind p9.LockType, _ p9.LockFlags, start, length uint64, _ string) (p9.LockStatus, error) {
	if kind > p9.Unlock {
		return p9.LockStatusError, linux.EINVAL
	}
	if n.file == nil {
		return p9.LockStatusError, linux.EBADF
	}
	l := unix.Flock_t{Type: [...]int16{unix.F_RDLCK, unix.F_WRLCK, unix.F_UNLCK}[kind], Start: int64(start), Len: int64(length)}
	switch err := unix.FcntlFlock(n.file.Fd(), unix.F_OFD_SETLK, &l); err {
	case nil:
		return p9.LockStatusOK, nil
	case unix.EAGAIN, unix.EACCES:
		return p9.LockStatusBlocked, nil
	default:
		return p9.LockStatusError, err
	}
}
