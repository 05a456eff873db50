"""Keeps what nobody here uses out of our processes, although packages that we use load it when they are imported.

Each megabyte of modules is there on every managed cluster, and each tenth of a second in every command. Who imports
what is left out here gets it, later.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

#: Module -> what is not there while it is imported.
_HIDDEN: Final[dict[str, tuple[str, ...]]] = {
    # For metrics of redis-py, which no process of ours makes.
    "redis": ("opentelemetry.sdk",),
    # For texts that do not say how they are encoded; what we read is JSON, and that is UTF-8.
    "requests": ("chardet", "charset_normalizer"),
    # For pools of processes, which no worker of ours has.
    "billiard.util": ("cffi",),
}
_ASYNCIO: Final = "redis.asyncio"
_RECORDER: Final = "redis.asyncio.observability.recorder"


def start() -> None:
    """Call it where a process begins: what is imported from then on is less. Does nothing the second time."""
    # Pydantic would look for plugins in the metadata of every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Have what is imported meanwhile believe that these packages are not there, unless somebody uses them already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


class _Finder:
    """Finds the modules of the list, whose loaders then hide what belongs to them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system calls it."""
        del target
        if name not in _HIDDEN:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """Runs a module as the real loader does, which is the module's from then on."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the import system calls it."""
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """As the import system calls it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with without(*_HIDDEN[module.__name__]), warnings.catch_warnings():
            # requests says that something is missing.
            warnings.simplefilter("ignore")
            if module.__name__ == "redis":
                self._without_asyncio(module)
            else:
                self._loader.exec_module(module)

    def _without_asyncio(self, redis: ModuleType) -> None:
        """Outside of `redis.asyncio` redis-py uses one name of it at its import: a function for asynchronous clients.

        A version that uses more is imported as it is.
        """
        stand_ins = {name: ModuleType(name) for name in (_ASYNCIO, _RECORDER)}
        stand_ins[_RECORDER].__dict__["record_streaming_lag_from_response"] = _record_later
        sys.modules.update(stand_ins)
        try:
            self._loader.exec_module(redis)
        except (ImportError, AttributeError):
            for name in [name for name in sys.modules if name.startswith("redis.")]:
                del sys.modules[name]
            self._loader.exec_module(redis)
        else:
            for name in stand_ins:
                del sys.modules[name]
            redis.__dict__.pop("asyncio", None)
            redis.__dict__["__getattr__"] = _attribute


async def _record_later(*args: Any, **options: Any) -> Any:
    """What redis-py's asynchronous commands call; by then somebody has imported all of it."""
    return await importlib.import_module(_RECORDER).record_streaming_lag_from_response(*args, **options)


def _attribute(name: str) -> Any:
    """`redis.asyncio`, when somebody asks for it without an import of their own."""
    if name == "asyncio":
        return importlib.import_module(_ASYNCIO)
    raise AttributeError(f"module 'redis' has no attribute {name!r}")
