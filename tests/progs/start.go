// start PROGRAM WORDS: starts it twice, the second time in an environment of its own, and passes on what it
// prints; then says what is mapped here, and where this program is.
package main

import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	for _, environment := range [][]string{nil, {"A=1", "PATH=/bin:/usr/bin"}} {
		command := exec.Command(os.Args[1], os.Args[2:]...)
		command.Env = environment
		said, err := command.CombinedOutput()
		fmt.Print(string(said))
		if err != nil {
			fmt.Println(err)
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	by := "nothing"
	if strings.Contains(string(maps), "/libshortwire.so") {
		by = "library"
	}
	if strings.Contains(string(maps), "/shortwire-raw") {
		by = "raw"
	}
	own, _ := os.Executable()
	fmt.Println(by, own)
}
