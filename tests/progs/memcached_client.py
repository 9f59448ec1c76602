"""memcached_client.py PORT OPERATIONS: the text protocol on four plain sockets at once, every answer checked.
They stay open until there is a line, or the end, at standard input."""
import random
import socket
import sys
import threading

port, operations = int(sys.argv[1]), int(sys.argv[2])
failures = []
talked, leave = threading.Semaphore(0), threading.Event()


def talk(number):
    rng = random.Random(number)
    known = {}
    with socket.create_connection(("127.0.0.1", port), timeout=60) as conn:
        stream = b""

        def line():
            nonlocal stream
            while b"\r\n" not in stream:
                more = conn.recv(65536)
                if not more:
                    raise EOFError
                stream += more
            head, _, stream = stream.partition(b"\r\n")
            return head

        def exactly(count):
            nonlocal stream
            while len(stream) < count:
                more = conn.recv(65536)
                if not more:
                    raise EOFError
                stream += more
            head, stream = stream[:count], stream[count:]
            return head

        for _ in range(operations):
            key = b"k%d-%d" % (number, rng.randrange(50))
            if rng.random() < 0.5 or key not in known:
                value = rng.randbytes(rng.choice((1, 100, 5000, 300000)))
                conn.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
                assert line() == b"STORED"
                known[key] = value
            else:
                conn.sendall(b"get %s\r\n" % key)
                head = line().split()
                assert head[:2] == [b"VALUE", key], head
                assert exactly(int(head[3])) == known[key]
                assert exactly(2) == b"\r\n" and line() == b"END"
        talked.release()
        leave.wait()


def guarded(number):
    try:
        talk(number)
    except BaseException as error:
        failures.append(f"{number}: {error!r}")
        talked.release()


threads = [threading.Thread(target=guarded, args=(n,)) for n in range(4)]
for t in threads:
    t.start()
for t in threads:
    talked.acquire()
if not failures:
    print("done", operations * 4, flush=True)
    sys.stdin.readline()
leave.set()
for t in threads:
    t.join()
if failures:
    sys.exit("; ".join(failures))
