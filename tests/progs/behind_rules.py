"""Connections of this process with itself, by rules that netfilter has: behind_rules.py redirected|dropped [shared].

redirected: one to port 80, which is redirected to 8080, and one to 8080, from one port. dropped: some packets
to port 7000 cannot be sent. Each must talk to its own server. shared: one that no rule is for must leave TCP."""
import socket
import struct
import sys
import threading


def listener(port):
    made = socket.socket()
    made.bind(("127.0.0.1", port))
    made.listen(50)
    return made


def exactly(conn, length):
    got = b""
    while len(got) < length:
        more = conn.recv(length - len(got))
        if not more:
            break
        got += more
    return got


def dial(port, source=0):
    conn = socket.socket()
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    conn.settimeout(30)
    if source:
        conn.bind(("127.0.0.1", source))
    conn.connect(("127.0.0.1", port))
    return conn


def serve(where, answer):
    def one(conn):
        name = b""
        while request := exactly(conn, 16):
            name = name or request
            conn.sendall(answer(name, request))

    def all_of_them():
        while True:
            threading.Thread(target=one, args=(where.accept()[0],), daemon=True).start()

    threading.Thread(target=all_of_them, daemon=True).start()


def redirected():
    """Both names of their sockets look as if they were each other's ends."""
    serve(listener(8080), lambda name, request: name)
    conns = [(dial(port, 40000), b"%016d" % port) for port in (80, 8080)]
    for _ in range(300):
        for conn, name in conns:
            conn.sendall(name)
            got = exactly(conn, 16)
            assert got == name, f"{name}: {got}"


def dropped():
    serve(listener(7000), lambda name, request: request)
    for number in range(12):
        conn = dial(7000)
        for turn in range(40):
            sent = b"%08d%08d" % (number, turn)
            conn.sendall(sent)
            got = exactly(conn, 16)
            assert got == sent, f"{sent}: {got}"
        conn.close()


def shared():
    serve(listener(7001), lambda name, request: request)
    conn = dial(7001)
    for _ in range(1000):
        conn.sendall(bytes(16))
        assert exactly(conn, 16) == bytes(16)
    # tcpi_bytes_sent
    sent = struct.unpack_from("Q", conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 200)[0]
    assert sent < 8000, f"{sent} of 16000 bytes went over TCP"


{"redirected": redirected, "dropped": dropped}[sys.argv[1]]()
if "shared" in sys.argv:
    shared()
print("all right")
