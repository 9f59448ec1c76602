"""stranger.py NAME: tries the abstract socket of that name as another user would, and says what it got."""
import os
import socket
import sys

name = "\0" + sys.argv[1]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
    s.settimeout(2)
    try:
        s.connect(name)
        s.send(os.urandom(100))
        answer, control, *_ = s.recvmsg(4096, 4096)
        print("got", len(answer), "bytes and", len(control), "control bytes")
    except OSError as error:
        print("refused:", error)
