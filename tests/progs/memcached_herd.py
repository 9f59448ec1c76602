"""memcached_herd.py PORT: eight threads call at the same time and talk, and go on now and then until a line is read.

A connection gets on with its calls alone: beside a busy machine all words of one may be over before first contact is made."""
import socket
import sys
import threading

port, threads = int(sys.argv[1]), 8
together = threading.Barrier(threads + 1)
over = threading.Event()


def ask(conn):
    conn.sendall(b"get nothing\r\n")
    assert conn.recv(100) == b"END\r\n"


def talk():
    together.wait()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as conn:
        for _ in range(300):
            ask(conn)
        together.wait()
        while not over.wait(0.01):
            ask(conn)


for _ in range(threads):
    threading.Thread(target=talk).start()
together.wait()
together.wait()
print("talked", flush=True)
sys.stdin.readline()
over.set()
