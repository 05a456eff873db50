"""A line with a round trip of so many milliseconds: a TCP proxy on the loopback that holds all bytes back.

    python -m bench.delay --to PORT --milliseconds 100

The proxy prints its port. Bytes keep their order, and as many as want may be under way at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Everything from one side to the other, so many seconds later."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            at, data = await under_way.get()
            await asyncio.sleep(at - loop.time())
            if not data:
                return
            writer.write(data)
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            under_way.put_nowait((loop.time() + seconds, data))
    under_way.put_nowait((loop.time() + seconds, b""))
    with contextlib.suppress(ConnectionError):
        await delivering
    writer.close()


async def serve(port: int, seconds: float) -> None:
    """Be the line to this port of this machine; each way takes so many seconds."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The handshake of TCP is a round trip of its own.
        await asyncio.sleep(2 * seconds)
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_carry(reader, back, seconds), _carry(there, writer, seconds))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> int:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=int, required=True, metavar="PORT")
    parser.add_argument("--milliseconds", type=float, default=100.0, help="of a round trip")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments.to, arguments.milliseconds / 2000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
