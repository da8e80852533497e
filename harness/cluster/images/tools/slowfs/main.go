// Command slowfs shows the files of a folder at a mount point, and makes their reads, writes and fsyncs slow or faulty on
// request, as a failing disk does. A loop device on such a file is a disk with these defects.
//
// The file "control" in the folder holds the defects as JSON, and is read again when it changes:
//
//	{"delay_us": {"fsync": 50000}, "jitter_us": {"fsync": 10000}, "error": {"write": 0.1}}
//
// Delays are drawn evenly from delay - jitter to delay + jitter; errors (EIO) happen with the given probability. Counters of
// all operations since the start are in the file "counters".
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

const every = 50 * time.Millisecond

type defects struct {
	DelayUs  map[string]int64   `json:"delay_us"`
	JitterUs map[string]int64   `json:"jitter_us"`
	Error    map[string]float64 `json:"error"`
}

type counter struct{ Operations, Delayed, Errors atomic.Int64 }

var (
	current  atomic.Pointer[defects]
	counters = map[string]*counter{"read": {}, "write": {}, "fsync": {}}
)

// afflict waits for the delay of an operation, and returns the error that it shall end with.
func afflict(operation string) syscall.Errno {
	now, count := current.Load(), counters[operation]
	count.Operations.Add(1)
	if delay := now.DelayUs[operation]; delay > 0 {
		if jitter := now.JitterUs[operation]; jitter > 0 {
			delay += rand.Int63n(2*jitter+1) - jitter
		}
		count.Delayed.Add(1)
		time.Sleep(time.Duration(delay) * time.Microsecond)
	}
	if rand.Float64() < now.Error[operation] {
		count.Errors.Add(1)
		return syscall.EIO
	}
	return 0
}

// file is a file of the folder, opened through the mount point.
type file struct {
	fs.FileHandle
}

func (f *file) Read(ctx context.Context, buffer []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	if errno := afflict("read"); errno != 0 {
		return nil, errno
	}
	return f.FileHandle.(fs.FileReader).Read(ctx, buffer, offset)
}

func (f *file) Write(ctx context.Context, data []byte, offset int64) (uint32, syscall.Errno) {
	if errno := afflict("write"); errno != 0 {
		return 0, errno
	}
	return f.FileHandle.(fs.FileWriter).Write(ctx, data, offset)
}

func (f *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if errno := afflict("fsync"); errno != 0 {
		return errno
	}
	return f.FileHandle.(fs.FileFsyncer).Fsync(ctx, flags)
}

func (f *file) Flush(ctx context.Context) syscall.Errno {
	return f.FileHandle.(fs.FileFlusher).Flush(ctx)
}

func (f *file) Release(ctx context.Context) syscall.Errno {
	return f.FileHandle.(fs.FileReleaser).Release(ctx)
}

func (f *file) Allocate(ctx context.Context, offset, size uint64, mode uint32) syscall.Errno {
	return f.FileHandle.(fs.FileAllocater).Allocate(ctx, offset, size, mode)
}

// node is a name in the folder.
type node struct {
	fs.LoopbackNode
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	handle, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &file{handle}, fuseFlags, 0
}

// watch reads the control file when it changes, and writes the counters.
func watch(folder string) {
	var once sync.Once
	var read time.Time
	for range time.Tick(every) {
		control := filepath.Join(folder, "control")
		if info, err := os.Stat(control); err == nil && info.ModTime().After(read) {
			text, err := os.ReadFile(control)
			found := &defects{}
			if err == nil && json.Unmarshal(text, found) == nil {
				current.Store(found)
				read = info.ModTime()
			}
		}
		counts := map[string]map[string]int64{}
		for operation, count := range counters {
			counts[operation] = map[string]int64{
				"operations": count.Operations.Load(), "delayed": count.Delayed.Load(), "errors": count.Errors.Load(),
			}
		}
		text, _ := json.Marshal(counts)
		partial := filepath.Join(folder, "counters.partial")
		if err := os.WriteFile(partial, text, 0o644); err == nil {
			err = os.Rename(partial, filepath.Join(folder, "counters"))
			if err != nil {
				once.Do(func() { fmt.Fprintln(os.Stderr, "slowfs: the counters can't be written:", err) })
			}
		}
	}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: slowfs FOLDER MOUNT_POINT")
		os.Exit(2)
	}
	folder, mountPoint := os.Args[1], os.Args[2]
	current.Store(&defects{})
	root := &fs.LoopbackRoot{Path: folder}
	root.NewNode = func(of *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &node{fs.LoopbackNode{RootData: of}}
	}
	root.RootNode = root.NewNode(root, nil, "", nil)
	// without fusermount; nothing is cached, because the loop device caches
	options := &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true, MaxWrite: 1 << 20, FsName: "slowfs"}}
	server, err := fs.Mount(mountPoint, root.RootNode, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "slowfs: can't mount:", err)
		os.Exit(1)
	}
	go watch(folder)
	fmt.Println("mounted")
	server.Wait()
}
