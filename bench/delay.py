"""A TCP proxy on the loopback interface that delays all bytes, so that a round trip takes a given time.

python -m bench.delay --to PORT --milliseconds 100

The proxy prints its port. Bytes keep their order, and their number in transit is unlimited.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Forward everything from one side to the other, with a delay in seconds."""
    loop = asyncio.get_running_loop()
    in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            at, data = await in_transit.get()
            await asyncio.sleep(at - loop.time())
            if not data:
                return
            writer.write(data)
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            in_transit.put_nowait((loop.time() + seconds, data))
    in_transit.put_nowait((loop.time() + seconds, b""))
    with contextlib.suppress(ConnectionError):
        await delivering
    writer.close()


async def serve(port: int, seconds: float) -> None:
    """Forward connections to this port of this machine; each direction has the delay."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The handshake of TCP is a further round trip.
        await asyncio.sleep(2 * seconds)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_carry(reader, server_writer, seconds), _carry(server_reader, writer, seconds))

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
