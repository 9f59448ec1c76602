// herd server PORT | herd client PORT GOROUTINES ROUNDS: an echo server and its clients, in a Go program
// with the C library. Both ends collect garbage all the time, get signals, start children, grow
// stacks around reads and end threads. herd http PORT | herd get PORT TIMES: the same of net/http.
package main

import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func fail(a ...any) {
	fmt.Fprintln(os.Stderr, a...)
	os.Exit(1)
}

func check(err error, a ...any) {
	if err != nil {
		fail(append(a, err)...)
	}
}

// What goes on beside the connections.
func trouble() {
	debug.SetGCPercent(20)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		for range signals {
		}
	}()
	go func() {
		for {
			syscall.Kill(os.Getpid(), syscall.SIGUSR1)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	go func() {
		for {
			said, err := exec.Command("/bin/echo", "child").Output()
			check(err, "a child")
			if string(said) != "child\n" {
				fail("a child said", string(said))
			}
			if err := exec.Command("/no/such/program").Run(); !errors.Is(err, os.ErrNotExist) {
				fail("a program that is not there:", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	go func() {
		for {
			// A goroutine that ends locked takes its thread with it.
			go func() {
				runtime.LockOSThread()
				os.ReadFile("/proc/self/comm")
			}()
			time.Sleep(5 * time.Millisecond)
		}
	}()
}

func echo(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 16<<10)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if _, err := conn.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Reads with as many frames on the stack, which must be as they were afterwards.
func deep(frames int, conn net.Conn, to []byte) error {
	var own [300]byte
	for i := range own {
		own[i] = byte(frames + i)
	}
	var err error
	if frames == 0 {
		_, err = io.ReadFull(conn, to)
	} else {
		err = deep(frames-1, conn, to)
	}
	for i := range own {
		if own[i] != byte(frames+i) {
			fail("a stack was written to")
		}
	}
	return err
}

func dial(address string) net.Conn {
	conn, err := net.Dial("tcp", address)
	check(err, "connecting")
	return conn
}

func client(address string, number, rounds int) {
	random := rand.New(rand.NewSource(int64(number)))
	conn := dial(address)
	for i := range rounds {
		sent := make([]byte, 1+random.Intn(random.Intn(12000)+1))
		random.Read(sent)
		// For this answer: how long all of them take is up to the machine.
		conn.SetDeadline(time.Now().Add(100 * time.Second))
		_, err := conn.Write(sent)
		check(err, "sending")
		got := make([]byte, len(sent))
		check(deep(random.Intn(60), conn, got), "receiving")
		if !bytes.Equal(sent, got) {
			fail("goroutine", number, "round", i, "came back wrong")
		}
		if random.Intn(100) == 0 {
			conn.Close()
			conn = dial(address)
		}
	}
	conn.SetDeadline(time.Now().Add(100 * time.Second))
	check(conn.(*net.TCPConn).CloseWrite(), "shutdown")
	if rest, err := io.ReadAll(conn); len(rest) != 0 || err != nil {
		fail("the end brought", len(rest), "bytes", err)
	}
	conn.Close()
}

// The mappings and threads of this process.
func held() (int, int) {
	maps, err := os.ReadFile("/proc/self/maps")
	check(err)
	tasks, err := os.ReadDir("/proc/self/task")
	check(err)
	return bytes.Count(maps, []byte("\n")), len(tasks)
}

func page(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Write(append([]byte(r.URL.Path), body...))
}

func get(address string, times int) {
	for _, alive := range []bool{true, false} {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: !alive}}
		for i := range times {
			body := bytes.Repeat([]byte{byte('a' + i%26)}, i*37%20000)
			path := fmt.Sprintf("/%d", i)
			answer, err := client.Post("http://"+address+path, "text/plain", bytes.NewReader(body))
			check(err, "a request")
			got, err := io.ReadAll(answer.Body)
			check(err, "an answer")
			answer.Body.Close()
			if !bytes.Equal(got, append([]byte(path), body...)) {
				fail("answer", i, "is wrong")
			}
		}
	}
}

func main() {
	address := "127.0.0.1:" + os.Args[2]
	number := func(i int) int { n, _ := strconv.Atoi(os.Args[i]); return n }
	switch os.Args[1] {
	case "server":
		listener, err := net.Listen("tcp", address)
		check(err)
		trouble()
		for {
			conn, err := listener.Accept()
			check(err, "accept")
			go echo(conn)
		}
	case "client":
		profile, err := os.CreateTemp("", "herd")
		check(err)
		os.Remove(profile.Name())
		check(pprof.StartCPUProfile(profile))
		trouble()
		var all sync.WaitGroup
		for i := range number(3) {
			all.Add(1)
			go func() {
				defer all.Done()
				client(address, i, number(4))
			}()
		}
		all.Wait()
		pprof.StopCPUProfile()
		if maps, threads := held(); maps > 400+12*threads {
			fail(maps, "mappings of", threads, "threads")
		}
		fmt.Println("done")
	case "http":
		check(http.ListenAndServe(address, http.HandlerFunc(page)))
	case "get":
		get(address, number(3))
		fmt.Println("done")
	}
}
