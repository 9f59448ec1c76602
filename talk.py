import sys, socket, hashlib, threading, selectors, os, asyncio, select
role, port = sys.argv[1], int(sys.argv[2])
SIZE = 3_000_000
DATA = bytes((i * 7 + i // 251) & 255 for i in range(SIZE))
async def serve():
    async def one(r, w):
        while True:
            head = await r.readexactly(4) if not r.at_eof() else b''
            if not head: break
            n = int.from_bytes(head, 'big')
            if n == 0: break
            w.write(await r.readexactly(n)); await w.drain()
        w.close()
    server = await asyncio.start_server(one, '127.0.0.1', port)
    print('listening', flush=True)
    async with server: await server.serve_forever()
if role == 'server':
    try: asyncio.run(serve())
    except KeyboardInterrupt: pass
else:
    c = socket.create_connection(('127.0.0.1', port))
    for n in (1, 64, 5000, SIZE):
        t = threading.Thread(target=lambda: c.sendall(n.to_bytes(4, 'big') + DATA[:n])); t.start()
        got = bytearray()
        while len(got) < n:
            r, _, _ = select.select([c], [], [], 10)
            assert r, 'nothing came'
            b = c.recv(min(65536, n - len(got)))
            assert b, 'ended'
            got += b
        t.join()
        assert bytes(got) == DATA[:n], n
    c.sendall(bytes(4))
    assert c.recv(1) == b''
    print('ok', c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), flush=True)
