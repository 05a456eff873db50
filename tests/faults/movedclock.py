"""The time of day of other processes, moved while they run, as an administrator or NTP would: a preloaded library."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

COMPILER = shutil.which("cc")

# The offset is in a file that all processes map, so that it changes for all of them at once. Monotonic clocks are
# unaffected.
_SOURCE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *offset;

__attribute__((constructor)) static void map_offset(void)
{
    int file = open(getenv("MOVED_CLOCK"), O_RDONLY);
    offset = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}
"""


class MovedClock:
    """A clock for the programs that are started with `environment`. Needs COMPILER."""

    def __init__(self, folder: Path) -> None:
        assert COMPILER is not None
        source, library = folder / "movedclock.c", folder / "movedclock.so"
        source.write_text(_SOURCE)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        self._file = folder / "offset"
        self._file.write_bytes(struct.pack("q", 0))
        self.environment = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(self._file)}

    def ahead(self, seconds: int) -> None:
        """Set the clock this many seconds ahead of the real one."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))
