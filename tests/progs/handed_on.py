# handed_on.py SHORTWIRE: a server that hands every connection to a worker which is another program, as node's cluster does.
# Says how many were answered, and whether their places in the table came back.
import json, os, socket, subprocess, sys, time

WORKER = """
import os, socket
channel = socket.socket(fileno=3)
while True:
    _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not fds:
        break
    s = socket.socket(fileno=fds[0])
    s.sendall(s.recv(100))
    s.close()
"""


def rows():
    said = subprocess.run([sys.argv[1], "ss", "--json"], capture_output=True).stdout
    return sum(r["local"].endswith(f":{port}") for r in json.loads(said)["connections"])


def serve(n):
    good = 0
    for i in range(n):
        client = socket.create_connection(("127.0.0.1", port))
        client.settimeout(10)
        server, _ = listener.accept()
        socket.send_fds(ours, [b"x"], [server.fileno()])
        server.close()
        client.sendall(b"%d" % i)
        good += client.recv(100) == b"%d" % i and client.recv(100) == b""
        client.close()
    return good


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
ours, theirs = socket.socketpair()
worker = subprocess.Popen([sys.executable, "-c", WORKER], preexec_fn=lambda: os.dup2(theirs.fileno(), 3), close_fds=False)
theirs.close()
print("answered", serve(600))
time.sleep(4.5)
print("answered", serve(600))
print("places", "came back" if rows() < 900 else f"are taken: {rows()}")
ours.close()
print("worker", worker.wait())
