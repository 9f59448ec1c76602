// Sends itself the signal of a bad access, which arrives inside the call that sends it.
package main

import "C"

import (
	"runtime"
	"syscall"
)

func main() {
	runtime.LockOSThread()
	syscall.Tgkill(syscall.Getpid(), syscall.Gettid(), syscall.SIGSEGV)
	select {}
}
