# Two requests on two connections, one after the other: the server, asleep when the first comes and awake when both are
# there, is told of them in that order. The client stays until there is a line, or the end, at standard input.
import os
import select
import socket
import sys
import time

PEERS, ROUNDS, LENGTH = 4, 400, 8
role, port = sys.argv[1], int(sys.argv[2])
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def server():
    # Woken up, it runs once the client sleeps.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(PEERS)
    poll, conns = select.epoll(), {}
    for _ in range(PEERS):
        conn = listener.accept()[0]
        conn.sendall(str(os.getpid()).encode().rjust(LENGTH))
        conns[conn.fileno()] = conn
        poll.register(conn, select.EPOLLIN)
    last = -1
    while conns:
        for fd, _ in poll.poll():
            said = conns[fd].recv(LENGTH)
            if not said:
                poll.unregister(fd)
                conns.pop(fd).close()
                continue
            assert int(said) == last + 1, f"{int(said)} after {last}"
            last += 1
            conns[fd].sendall(said)


def sleeps(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "S"


def client():
    conns = [socket.create_connection(("127.0.0.1", port)) for _ in range(PEERS)]
    pids = {int(conn.recv(LENGTH)) for conn in conns}
    number = 0
    for i in range(ROUNDS):
        # What a server that is not asleep yet was told before, it would be told first.
        time.sleep(0.002)
        while not all(map(sleeps, pids)):
            time.sleep(0.001)
        first = i % PEERS
        second = (first + 1 + i // PEERS % (PEERS - 1)) % PEERS
        for at in (first, second):
            conns[at].sendall(str(number).encode().rjust(LENGTH))
            number += 1
        for at in (first, second):
            assert len(conns[at].recv(LENGTH)) == LENGTH
    print("done", flush=True)
    sys.stdin.readline()


server() if role == "server" else client()
