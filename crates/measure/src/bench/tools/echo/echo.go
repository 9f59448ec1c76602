// go build echo.go: a server that sends back what comes, a client that asks it, or a server of pages;
// with the C library or without it, as CGO_ENABLED says.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(i int) int {
	n, err := strconv.Atoi(os.Args[i])
	check(err)
	return n
}

// Listens on any free port of an address, and prints where.
func listen(address string) net.Listener {
	listener, err := net.Listen("tcp", address+":0")
	check(err)
	fmt.Println(listener.Addr())
	return listener
}

func serve(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if _, err := conn.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// One question after the other until the end; the nanoseconds that each took.
func ask(conn net.Conn, size int, end time.Time) []int {
	var took []int
	question, answer := make([]byte, size), make([]byte, size)
	last := time.Now()
	for i := 0; last.Before(end); i++ {
		question[i%size]++
		_, err := conn.Write(question)
		check(err)
		_, err = io.ReadFull(conn, answer)
		check(err)
		if !bytes.Equal(question, answer) {
			check(fmt.Errorf("another answer than was asked for"))
		}
		now := time.Now()
		took = append(took, int(now.Sub(last)))
		last = now
	}
	return took
}

func client(address string, connections, size int, length time.Duration) {
	var conns []net.Conn
	for range connections {
		conn, err := net.Dial("tcp", address)
		check(err)
		conns = append(conns, conn)
	}
	all := make([][]int, connections)
	var running sync.WaitGroup
	start := time.Now()
	for i, conn := range conns {
		running.Add(1)
		go func() {
			defer running.Done()
			all[i] = ask(conn, size, start.Add(length))
		}()
	}
	running.Wait()
	seconds := time.Since(start).Seconds()
	took := slices.Concat(all...)
	slices.Sort(took)
	at := func(share float64) float64 { return float64(took[int(share*float64(len(took)-1))]) / 1e3 }
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"messages":            len(took),
		"messages_per_second": float64(len(took)) / seconds,
		"latency_us": map[string]float64{
			"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1),
		},
	}))
}

func main() {
	switch os.Args[1] {
	case "echo":
		listener := listen(os.Args[2])
		for {
			conn, err := listener.Accept()
			check(err)
			go serve(conn)
		}
	case "ask":
		client(os.Args[2], number(3), number(4), time.Duration(number(5))*time.Millisecond)
	case "pages":
		page := bytes.Repeat([]byte("x"), 612)
		check(http.Serve(listen(os.Args[2]), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Write(page)
		})))
	}
}
