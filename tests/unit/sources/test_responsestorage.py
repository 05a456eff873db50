"""Memory and disk for the responses of cycles."""

from __future__ import annotations

import mmap
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from dsf.errors import HttpError
from dsf.sources.prometheus import extract_series
from dsf.sources.responsestorage import ResponseBudget, ResponseStorage, Spool


@pytest.mark.parametrize("sizes", [[], [10], [600_000], [500_000, 20_000, 30_000], [1024] * 1000])
def test_large_answers_are_on_disk(tmp_path: Path, sizes: list[int]) -> None:
    spool = Spool(tmp_path / "new")
    for number, size in enumerate(sizes):
        spool.write(bytes([65 + number % 26]) * size)
    body = spool.read_body()
    assert len(body) == sum(sizes)
    assert body[:] == b"".join(bytes([65 + number % 26]) * size for number, size in enumerate(sizes))
    assert isinstance(body, mmap.mmap) is (sum(sizes) > 512 * 1024)
    assert not list(tmp_path.rglob("*/*")), "a file without a name"


def test_matrix_is_cut_out_of_a_file_as_out_of_memory(tmp_path: Path) -> None:
    series = b'{"metric":{"a":"},{"},"values":[[1,"2"]]}'
    for separator in (b",", b" , "):
        body = b'{"status":"success","data":{"resultType":"matrix","result":[%s]}}' % separator.join([series] * 20_000)
        spool = Spool(tmp_path)
        spool.write(body)
        in_file, in_memory = extract_series(spool.read_body()), extract_series(body)
        assert (bytes(in_file.items), in_file.series) == (bytes(in_memory.items), 20_000)


def test_large_answer_takes_its_size_in_memory_once(tmp_path: Path) -> None:
    spool, piece = Spool(tmp_path), b"x" * 1_000_000
    tracemalloc.start()
    try:
        for _ in range(20):
            # A copy, because a reader of a connection gets new bytes for each piece.
            spool.write(bytes(bytearray(piece)))
        body = spool.read_bytes()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert body == piece * 20
    assert peak < 24_000_000


#: Prints how many MB of memory remain of 80 MB of small objects below a small one, after a cycle that reserved them.
FRAGMENTED = """
import ctypes, re, sys
from pathlib import Path
from dsf.sources.responsestorage import ResponseBudget, ResponseStorage

def measure():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

before = measure()
with ResponseStorage(ResponseBudget(100_000_000)) as storage:
    storage.reserve(80_000_000)
    objects = [bytes(4000) for _ in range(20_000)]
    last = bytes(4000)
    del objects
print(measure() - before if hasattr(ctypes.CDLL(None), "malloc_trim") else 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_end_of_a_large_cycle_returns_memory_to_the_system() -> None:
    program = subprocess.run([sys.executable, "-c", FRAGMENTED], capture_output=True, text=True, check=True)
    assert int(program.stdout) < 20


def test_folder_that_cannot_be_written_fails_the_cycle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HttpError, match="cannot write 600000 bytes into") as raised:
        Spool(tmp_path / "file").write(b"x" * 600_000)
    assert raised.value.reason == "spool_failed"


def test_cycles_share_one_budget_of_memory() -> None:
    budget = ResponseBudget(100)
    with ResponseStorage(budget) as first, ResponseStorage(budget) as second:
        first.reserve(60)
        second.reserve(40)
        with pytest.raises(HttpError, match="more than the 100 bytes that an agent holds") as raised:
            second.reserve(1)
        assert (raised.value.reason, raised.value.retryable) == ("too_large", True)
        first.release_all()
        second.reserve(60)
    assert budget.reserved == 0
