"""memcached_herd.py PORT: eight threads call at the same time and talk; their connections stay until a line is read."""
import socket
import sys
import threading

port, threads = int(sys.argv[1]), 8
together = threading.Barrier(threads + 1)


def talk():
    together.wait()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as conn:
        for _ in range(300):
            conn.sendall(b"get nothing\r\n")
            assert conn.recv(100) == b"END\r\n"
        together.wait()
        together.wait()


for _ in range(threads):
    threading.Thread(target=talk).start()
together.wait()
together.wait()
print("talked", flush=True)
sys.stdin.readline()
together.wait()
