"""asyncio_echo.py server PORT | client PORT CONNECTIONS ROUNDS
A client's connections stay open until there is a line, or the end, at standard input."""
import asyncio
import random
import sys


async def echo(reader, writer):
    while block := await reader.read(65536):
        writer.write(block)
        await writer.drain()
    writer.close()


async def server(port):
    listener = await asyncio.start_server(echo, "127.0.0.1", port)
    async with listener:
        await listener.serve_forever()


async def talk(port, seed, rounds):
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(rounds):
        block = rng.randbytes(rng.choice((1, 100, 4000, 200000)))
        writer.write(block)
        await writer.drain()
        answer = await asyncio.wait_for(reader.readexactly(len(block)), 60)
        if answer != block:
            raise SystemExit("wrong echo")
    return reader, writer


async def leave(reader, writer):
    writer.write_eof()
    if await asyncio.wait_for(reader.read(), 60):
        raise SystemExit("bytes after the end")
    writer.close()
    await writer.wait_closed()


async def client(port, connections, rounds):
    conns = await asyncio.gather(*(talk(port, i, rounds) for i in range(connections)))
    print("done", connections * rounds, flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(leave(*conn) for conn in conns))


args = [int(a) for a in sys.argv[2:]]
asyncio.run({"server": server, "client": client}[sys.argv[1]](*args))
