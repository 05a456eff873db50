"""Hostile JSON for every reader of untrusted data, and the memory that a reader takes for it.

`documents` puts values that grow when they are parsed where a reader expects something. `measure_growth` calls a reader
with each of them in a separate process with limits of memory and CPU time, so a failing reader only kills that one.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.support import forked

#: Seconds of CPU for all documents of one reader.
_CPU: Final = 100
#: Megabytes that the process may map beyond those at its start: enough to measure growth, without harm to the machine.
_ROOM: Final = 1500
#: Maximum characters of an error, because errors appear in logs and statuses.
_LONGEST_ERROR: Final = 64 * 1024
_HOLE: Final = b"@HOLE@"
#: A series with 40 labels, whose values are places for numbers.
_SERIES: Final = b'{"metric":{%s},"values":[[1,"2"]]}' % b",".join(b'"label%d":"%%d"' % number for number in range(40))


def values(size: int) -> dict[str, Callable[[], bytes]]:
    """Return functions that make JSON values of about `size` bytes, by the content of the values.

    Some values are cut, so that the parser fails at their end.
    """

    def list_of(element: bytes) -> bytes:
        return b"[" + (element + b",") * (size // (len(element) + 1) - 1) + element + b"]"

    def numbered(element: bytes) -> bytes:
        """Repeat an element with another number in each place of `%d`, so that no parser shares its texts."""
        placeholder_count = element.count(b"%d")
        count = size // (len(element) + 4 * placeholder_count)
        # Elements are not joined, because a list of all elements takes more memory than the text.
        text = bytearray()
        for number in range(count):
            text += element % tuple(range(placeholder_count * number, placeholder_count * (number + 1))) + b","
        return bytes(text[:-1])

    def keyed(value: bytes) -> bytes:
        return b"{" + b",".join(b'"k%d":%s' % (number, value) for number in range(size // (9 + len(value)))) + b"}"

    return {
        "empty lists": lambda: list_of(b"[]"),
        "empty objects": lambda: list_of(b"{}"),
        "numbers": lambda: list_of(b"1"),
        "fractions": lambda: list_of(b"0.1"),
        "nulls": lambda: list_of(b"null"),
        "short texts": lambda: list_of(b'"a"'),
        "small objects": lambda: list_of(b'{"a":1}'),
        "almost results": lambda: list_of(b"[{},1]"),
        "pairs": lambda: list_of(b'[{"node":"a"},1]'),
        "objects with a wrong field": lambda: list_of(b'{"name":1,"score":"x","metric":[]}'),
        "keys": lambda: keyed(b"1"),
        "keys of lists": lambda: keyed(b"[]"),
        "one key": lambda: b"{" + b",".join([b'"z":1'] * (size // 6)) + b"}",
        "a key twice behind many": lambda: keyed(b"1")[:-1] + b',"z":1,"z":2}',
        "deep lists": lambda: b"[" * (size // 2) + b"]" * (size // 2),
        "deep objects": lambda: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
        "unclosed lists": lambda: b"[" * size,
        "unclosed objects": lambda: b'{"a":' * (size // 5),
        "cut lists": lambda: list_of(b"[]")[:-1],
        "a number": lambda: b"9" * size,
        "an exponent": lambda: b"1e" + b"9" * size,
        "a text": lambda: b'"' + b"x" * size + b'"',
        "a wide text": lambda: b'"' + "\N{GRINNING FACE}".encode() + b"x" * size + b'"',
        "escapes": lambda: b'"' + b"\\u0041" * (size // 6) + b'"',
        "surrogates": lambda: b'"' + b"\\ud800" * (size // 6) + b'"',
        "commas in a text": lambda: b'"' + b"," * size + b'"',
        "brackets in a text": lambda: b'"' + b"[" * size + b'"',
        "labels": lambda: b"{" + numbered(b'"l%d":"%d"') + b"}",
        "one label": lambda: b"{" + numbered(b'"l":"v%d"') + b"}",
        "series of short labels": lambda: b"[" + numbered(_SERIES) + b"]",
        "series of many labels": lambda: b"[" + numbered(_SERIES.replace(b"%d", b"x" * 20 + b"%d")) + b"]",
        "series of wide labels": lambda: b"[" + numbered(_SERIES.replace(b"%d", "\N{GRINNING FACE}%d".encode())) + b"]",
        "series of long labels": lambda: b"[" + numbered(_SERIES.replace(b"%d", b"x" * 10_000 + b"%d")) + b"]",
        "blanks": lambda: b" " * size + b"1",
    }


def documents(template: bytes, size: int, names: Collection[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield the `template` with each of `values` in place of each `@HOLE@`, and each of `values` alone.

    With `names` only these values.
    """
    makers = values(size)
    for name, make in ((name, makers[name]) for name in names or makers):
        value = make()
        yield f"bare {name}", value
        before, hole, after = template.partition(_HOLE)
        while hole:
            yield f"{name} in {before[-30:].decode()!r}", before + value + after.replace(_HOLE, b"null")
            head, hole, after = after.partition(_HOLE)
            before = before + b"null" + head


def measure_growth(reader: str, template: str, size: int, names: Collection[str] = ()) -> dict[str, float]:
    """Return the megabytes by which the process grows at most while `reader` (`module:function`) reads each document.

    `names` are those of the values, by default all. The reader gets bytes; an error that it raises is its response.
    Fails if the process dies.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = forked.run(__name__, [reader, template, str(size), *names], environment)
    # Readers may log to standard output.
    lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('["')]
    assert process.returncode == 0, f"{reader} died behind {lines[-1:]}: {process.stderr[-2000:]}"
    return dict(lines)


def _peak() -> float:
    """Return the peak memory of this process in megabytes since the counter was reset."""
    return _status("VmHWM")


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"the system tells no {field}")


def _main(reader: str, template: str, size: int, names: Collection[str]) -> None:
    module, _, name = reader.partition(":")
    read: Callable[[bytes], object] = getattr(import_module(module), name)
    limit = int(_status("VmSize") + _ROOM) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU))
    for label, document in documents(template.encode(), size, names):
        # Restart the count of the peak here.
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
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
