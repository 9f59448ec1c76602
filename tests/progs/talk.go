// talk PORT ROUNDS: an echo client that makes its own system calls, so no preload library sees it.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
	"time"
)

func fail(a ...any) {
	fmt.Fprintln(os.Stderr, a...)
	os.Exit(1)
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[2])
	conn, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		fail(err)
	}
	conn.SetDeadline(time.Now().Add(time.Minute))
	random := rand.New(rand.NewSource(3))
	for i := range rounds {
		sent := make([]byte, 1+random.Intn(2000))
		random.Read(sent)
		if _, err := conn.Write(sent); err != nil {
			fail("round", i, err)
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(sent, got) {
			fail("round", i, "came back wrong", err)
		}
	}
	conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 16)); n != 0 || !os.IsTimeout(err) {
		fail("idle time brought", n, "bytes", err)
	}
	conn.SetDeadline(time.Now().Add(time.Minute))
	conn.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(conn); len(rest) != 0 || err != nil {
		fail("the end brought", len(rest), "bytes", err)
	}
	fmt.Println("done", rounds)
}
