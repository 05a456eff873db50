"""Hostile JSON for every reader of foreign bytes, and the memory that a reader takes for it.

`documents` puts values that grow when they are parsed where a reader expects something. `growth` calls a reader with
each of them in a process of its own under a limit of memory and CPU time, so that a reader that fails kills that one.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

#: Seconds of CPU for all documents of one reader.
_CPU: Final = 100
#: Megabytes that the process may map beyond those it has at its start: enough to measure, too few for the machine.
_ROOM: Final = 1500
#: Characters of an error that its reader may raise: it goes to logs and statuses.
_LONGEST_ERROR: Final = 64 * 1024
_HOLE: Final = b"@HOLE@"


def values(size: int) -> dict[str, bytes]:
    """JSON values of about `size` bytes, by what they are made of. Some are cut: the parser fails at their end."""

    def list_of(element: bytes) -> bytes:
        return b"[" + b",".join([element] * (size // (len(element) + 1))) + b"]"

    def keyed(value: bytes) -> bytes:
        return b"{" + b",".join(b'"k%d":%s' % (number, value) for number in range(size // (9 + len(value)))) + b"}"

    return {
        "empty lists": list_of(b"[]"),
        "empty objects": list_of(b"{}"),
        "numbers": list_of(b"1"),
        "fractions": list_of(b"0.1"),
        "nulls": list_of(b"null"),
        "short texts": list_of(b'"a"'),
        "small objects": list_of(b'{"a":1}'),
        "almost results": list_of(b"[{},1]"),
        "pairs": list_of(b'[{"node":"a"},1]'),
        "objects with a wrong field": list_of(b'{"name":1,"score":"x","metric":[]}'),
        "keys": keyed(b"1"),
        "keys of lists": keyed(b"[]"),
        "one key": b"{" + b",".join([b'"z":1'] * (size // 6)) + b"}",
        "a key twice behind many": keyed(b"1")[:-1] + b',"z":1,"z":2}',
        "deep lists": b"[" * (size // 2) + b"]" * (size // 2),
        "deep objects": b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
        "unclosed lists": b"[" * size,
        "unclosed objects": b'{"a":' * (size // 5),
        "cut lists": list_of(b"[]")[:-1],
        "a number": b"9" * size,
        "an exponent": b"1e" + b"9" * size,
        "a text": b'"' + b"x" * size + b'"',
        "a wide text": b'"' + "\N{GRINNING FACE}".encode() + b"x" * size + b'"',
        "escapes": b'"' + b"\\u0041" * (size // 6) + b'"',
        "surrogates": b'"' + b"\\ud800" * (size // 6) + b'"',
        "commas in a text": b'"' + b"," * size + b'"',
        "brackets in a text": b'"' + b"[" * size + b'"',
        "blanks": b" " * size + b"1",
    }


def documents(template: bytes, size: int) -> Iterator[tuple[str, bytes]]:
    """The `template` with each of `values` in place of each `@HOLE@`, and each of `values` by itself."""
    for name, value in values(size).items():
        yield f"bare {name}", value
        before, hole, after = template.partition(_HOLE)
        while hole:
            yield f"{name} in {before[-30:].decode()!r}", before + value + after.replace(_HOLE, b"null")
            head, hole, after = after.partition(_HOLE)
            before = before + b"null" + head


def growth(reader: str, template: str, size: int, room: int = _ROOM) -> dict[str, float]:
    """Megabytes by which the process grows at most while `reader` (`module:function`) reads each document.

    The reader gets bytes; what it raises is its answer. Fails if the process dies.
    """
    process = subprocess.run(
        [sys.executable, "-m", __name__, reader, template, str(size), str(room)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    # Readers may log to standard output.
    lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('["')]
    assert process.returncode == 0, f"{reader} died behind {lines[-1:]}: {process.stderr[-2000:]}"
    return dict(lines)


def _peak() -> float:
    """Megabytes of this process at its peak since `_reset`."""
    return _status("VmHWM")


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"the system tells no {field}")


def _main(reader: str, template: str, size: int, room: int) -> None:
    module, _, name = reader.partition(":")
    read: Callable[[bytes], object] = getattr(import_module(module), name)
    limit = int(_status("VmSize") + room) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU))
    for label, document in documents(template.encode(), size):
        # From here on the peak counts anew.
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = _status("VmRSS")
        try:
            read(document)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (what a reader refuses, it refuses)
            length = len(str(error))
            if length > _LONGEST_ERROR:
                raise SystemExit(f"an error of {length} characters for {label}") from None
        print(json.dumps((label, round(_peak() - before, 1))), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
