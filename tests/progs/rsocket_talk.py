"""Echo by asyncio (epoll), and a client by threads and select: blocks up to 3 MB, checked."""
import asyncio
import os
import select
import socket
import sys
import threading

role, port = sys.argv[1], int(sys.argv[2])
LARGEST = 3_000_000
DATA = bytes((i * 7 + i // 251) & 255 for i in range(LARGEST))


async def serve():
    async def one(reader, writer):
        while n := int.from_bytes(await reader.readexactly(4), 'big'):
            writer.write(await reader.readexactly(n))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, '127.0.0.1', port)
    os.closerange(600, 4096)
    async with server:
        await server.serve_forever()


def talk():
    c = socket.create_connection(('127.0.0.1', port))
    # As daemons do: no number up there is the program's.
    os.closerange(600, 4096)
    for n in (1, 64, 5000, LARGEST):
        send = threading.Thread(target=lambda: c.sendall(n.to_bytes(4, 'big') + DATA[:n]))
        send.start()
        got = bytearray()
        while len(got) < n:
            assert select.select([c], [], [], 60)[0], 'nothing came'
            block = c.recv(min(65536, n - len(got)))
            assert block, 'it ended'
            got += block
        send.join()
        assert bytes(got) == DATA[:n], f'{n} bytes came back as others'
    c.sendall(bytes(4))
    assert c.recv(1) == b''
    # What a program asks of the TCP socket is answered by it.
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) > 0
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    print('all came back', flush=True)


if role == 'server':
    asyncio.run(serve())
else:
    talk()
