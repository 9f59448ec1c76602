"""Calls of libc on a connection between two ends of this process, by names that Python does not use, and
waits under a mask of signals."""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import threading

libc = ctypes.CDLL(None, use_errno=True)
LIMIT = 20


def answers(call, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, call)(*arguments)
    return result if result >= 0 else -ctypes.get_errno()


def time():
    return ctypes.create_string_buffer(struct.pack("ll", LIMIT, 0))


def entry(fd):
    return ctypes.create_string_buffer(struct.pack("ihh", fd, select.POLLIN, 0), 8)


def bits(fd):
    words = bytearray(128)
    words[fd // 8] = 1 << fd % 8
    return ctypes.create_string_buffer(bytes(words), 128)


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
ends = []
connects = threading.Thread(target=lambda: ends.append(socket.create_connection(listener.getsockname())))
connects.start()
ends.append(listener.accept()[0])
connects.join()
ends[1].sendall(b"met")
assert ends[0].recv(3) == b"met"
here, there = (end.fileno() for end in ends)

# Each name moves its bytes, which are the other end's. A wait that is past us would find none.
room = ctypes.create_string_buffer(64)
sends = {
    "write": (b"write", 5),
    "__write": (b"write", 5),
    "__send": (b"send", 4, 0),
}
receives = {
    "read": (room, 64),
    "__read": (room, 64),
    "__read_chk": (room, 64, 64),
    "__recv": (room, 64, 0),
    "__recv_chk": (room, 64, 64, 0),
    "__recvfrom_chk": (room, 64, 64, 0, None, None),
}
waits = {
    "__poll": lambda: (entry(there), 1, LIMIT * 1000),
    "__poll_chk": lambda: (entry(there), 1, LIMIT * 1000, 8),
    "__ppoll_chk": lambda: (entry(there), 1, time(), None, 8),
    "__select": lambda: (there + 1, bits(there), None, None, time()),
}
for send, given in sends.items():
    for receive, place in receives.items():
        for wait, arguments in waits.items():
            assert answers(send, here, *given) == given[1], send
            assert answers(wait, *arguments()) == 1, wait
            assert answers(receive, there, *place) == given[1], receive
            assert room.raw[: given[1]] == given[0], (send, receive)

# What writes past every library fails, and goes on where there is no rsocket.
pipe = os.pipe()
mixed = (b"%d %s %.2f %d %d %d %d", 1, b"a", ctypes.c_double(2.5), 3, 4, 5, 6)
for call, arguments in {
    "dprintf": mixed,
    "__dprintf_chk": (1, *mixed),
    "vdprintf": (b"1 a 2.50 3 4 5 6", room),
    "__vdprintf_chk": (1, b"1 a 2.50 3 4 5 6", room),
}.items():
    assert answers(call, here, *arguments) == -errno.EOPNOTSUPP, call
    assert answers(call, pipe[1], *arguments) == 16, call
    assert os.read(pipe[0], 64) == b"1 a 2.50 3 4 5 6", call
assert answers("__dup2", here, pipe[1]) == -errno.EOPNOTSUPP

# A signal that came before the call, and waits for its mask, ends it.
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
none = ctypes.create_string_buffer(128)
members = libc.epoll_create1(0)
event = ctypes.create_string_buffer(struct.pack("=IQ", select.EPOLLIN, 0), 16)
for fd in there, listener.fileno():
    assert answers("epoll_ctl", members, 1, fd, event) == 0
    for call, arguments in {
        "ppoll": (entry(fd), 1, time(), none),
        "__ppoll_chk": (entry(fd), 1, time(), none, 8),
        "pselect": (fd + 1, bits(fd), None, None, time(), none),
        "epoll_pwait": (members, event, 1, LIMIT * 1000, none),
        "epoll_pwait2": (members, event, 1, time(), none),
    }.items():
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert answers(call, *arguments) == -errno.EINTR, call

assert answers("__close", here) == 0
assert ends[0 if ends[0].fileno() == there else 1].recv(1) == b"", "the end"
print("by every name")
