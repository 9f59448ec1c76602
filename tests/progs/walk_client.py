"""walk_client.py SERVICE CONNECTIONS: asks redis, memcached, nginx or postgresql on this machine, and checks every byte of each answer.

Says `begun` when a connection has had twenty answers, and opens one more at each line `new`; at any other line it ends and
says what it has checked. `walk_client.py data` prints the file that nginx is to serve.
"""
import http.client
import os
import random
import socket
import sys
import threading
import time

DATA = random.Random(1).randbytes(300_000)


def redis():
    conn = socket.create_connection(("127.0.0.1", 6379))
    stream = conn.makefile("rb")

    def once(key, value):
        conn.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value))
        assert stream.readline() == b"+OK\r\n"
        conn.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        assert stream.readline() == b"$%d\r\n" % len(value)
        assert stream.read(len(value) + 2) == value + b"\r\n"
        return len(value)

    return once


def memcached():
    conn = socket.create_connection(("127.0.0.1", 11211))
    stream = conn.makefile("rb")

    def once(key, value):
        conn.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        assert stream.readline() == b"STORED\r\n"
        conn.sendall(b"get %s\r\n" % key)
        assert stream.readline().split() == [b"VALUE", key, b"0", b"%d" % len(value)]
        assert stream.read(len(value) + 2) == value + b"\r\n" and stream.readline() == b"END\r\n"
        return len(value)

    return once


def nginx():
    # It connects anew where the server has closed, as nginx does after a thousand requests.
    conn = http.client.HTTPConnection("127.0.0.1", 80)

    def once(_, value):
        first = int.from_bytes(value[:4], "big") % (len(DATA) - len(value))
        conn.request("GET", "/data.bin", headers={"Range": f"bytes={first}-{first + len(value) - 1}"})
        answer = conn.getresponse()
        assert answer.status == 206 and answer.read() == DATA[first : first + len(value)]
        return len(value)

    return once


def postgresql():
    import psycopg2

    conn = psycopg2.connect("host=127.0.0.1 user=walker password=walks dbname=postgres")
    conn.autocommit = True
    cursor = conn.cursor()

    def once(_, value):
        cursor.execute("select %s::bytea, length(%s::bytea)", (value, value))
        echoed, length = cursor.fetchone()
        assert bytes(echoed) == value and length == len(value)
        return len(value)

    return once


if sys.argv[1] == "data":
    sys.stdout.buffer.write(DATA)
    sys.exit()

service, stop = {"redis": redis, "memcached": memcached, "nginx": nginx, "postgresql": postgresql}[sys.argv[1]], threading.Event()
done, threads = [], []


def use(number):
    try:
        once, rng, answers, checked = service(), random.Random(), 0, 0
        while not stop.is_set():
            checked += once(b"walk-%d-%d" % (os.getpid(), number), rng.randbytes(rng.choice((5, 500, 5000, 70_000))))
            answers += 1
            if answers == 20:
                os.write(1, b"begun\n")
            time.sleep(0.005)
        done.append((answers, checked))
    except BaseException as error:
        os.write(2, f"connection {number}: {error!r}\n".encode())
        os._exit(1)


def begin():
    threads.append(threading.Thread(target=use, args=(len(threads),)))
    threads[-1].start()


for _ in range(int(sys.argv[2])):
    begin()
for line in sys.stdin:
    if line != "new\n":
        break
    begin()
stop.set()
for thread in threads:
    thread.join()
print(f"checked {sum(a for a, _ in done)} answers, {sum(b for _, b in done)} bytes, on {len(done)} connections: all right", flush=True)
