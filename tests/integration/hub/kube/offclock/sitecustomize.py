"""Python loads this at its start when the folder is in PYTHONPATH: a host whose clock is set wrong.

The wall clock of the process, by `time` and by `datetime`, is off by OFF_CLOCK seconds. The monotonic clock is right,
as it is on such a host.
"""

import datetime
import os
import time

_OFFSET = float(os.environ["OFF_CLOCK"])
_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


class _AnyDatetime(type):
    """Real datetimes are instances of the class that replaces theirs."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _datetime)


class _Datetime(_datetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return _datetime.fromtimestamp(_time() + _OFFSET, tz)

    @classmethod
    def utcnow(cls) -> datetime.datetime:
        return cls.now(datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _OFFSET
time.time_ns = lambda: _time_ns() + int(_OFFSET * 1e9)
datetime.datetime = _Datetime  # type: ignore[misc]
