"""nats_client.py PORT MESSAGES: what is published comes to who has subscribed, whole and in order; four at once, by NATS' own protocol."""
import random
import socket
import sys
import threading

port, messages = int(sys.argv[1]), int(sys.argv[2])
failures = []


def connected():
    conn = socket.create_connection(("127.0.0.1", port), timeout=60)
    lines = conn.makefile("rb")
    assert lines.readline().startswith(b"INFO ")
    conn.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
    expect(conn, lines, b"PONG\r\n")
    return conn, lines


def expect(conn, lines, wanted):
    # The server asks for a sign of life, first two seconds after the connection.
    while (line := lines.readline()) == b"PING\r\n":
        conn.sendall(b"PONG\r\n")
    assert line == wanted, f"{line!r} in place of {wanted!r}"


def talk(number):
    rng = random.Random(number)
    subject = b"subject.%d" % number
    (reader, lines), (writer, answers) = connected(), connected()
    with reader, writer:
        reader.sendall(b"SUB %s 1\r\nPING\r\n" % subject)
        expect(reader, lines, b"PONG\r\n")
        left = messages
        while left > 0:
            batch = [rng.randbytes(rng.choice((0, 1, 100, 5000, 60000))) for _ in range(min(left, rng.randint(1, 8)))]
            writer.sendall(b"".join(b"PUB %s %d\r\n%s\r\n" % (subject, len(one), one) for one in batch) + b"PING\r\n")
            for one in batch:
                expect(reader, lines, b"MSG %s 1 %d\r\n" % (subject, len(one)))
                assert lines.read(len(one) + 2) == one + b"\r\n"
            expect(writer, answers, b"PONG\r\n")
            left -= len(batch)


def guarded(number):
    try:
        talk(number)
    except BaseException as error:
        failures.append(f"{number}: {error!r}")


threads = [threading.Thread(target=guarded, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failures:
    sys.exit("\n".join(failures))
print("done", 4 * messages)
