"""Keeps unused modules out of the framework's processes, although third-party packages import them.

Each megabyte of modules takes memory on every managed cluster, and each tenth of a second delays every command. A later
import of an omitted module still works.
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

#: Module -> modules that are hidden while it is imported.
_HIDDEN: Final[dict[str, tuple[str, ...]]] = {
    # For metrics of redis-py, which are not used.
    "redis": ("opentelemetry.sdk",),
    # For text of unknown encoding; the framework only reads JSON in UTF-8.
    "requests": ("chardet", "charset_normalizer"),
    # For process pools, which no worker uses.
    "billiard.util": ("cffi",),
}
_ASYNCIO: Final = "redis.asyncio"
_RECORDER: Final = "redis.asyncio.observability.recorder"


def start() -> None:
    """Hide unused modules from later imports. Called at process start; idempotent."""
    # Pydantic would search the metadata of every installed package for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Hide these packages from imports within the context, unless they are loaded already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


class _Finder:
    """Finds the listed modules and gives them a loader that hides others."""

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
    """Executes a module by its real loader, which it restores as the module's loader."""

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
            # requests warns about missing packages.
            warnings.simplefilter("ignore")
            if module.__name__ == "redis":
                self._without_asyncio(module)
            else:
                self._loader.exec_module(module)

    def _without_asyncio(self, redis: ModuleType) -> None:
        """Outside of `redis.asyncio`, redis-py imports one name from it: a function for asynchronous clients.

        A version that uses more of it is imported unchanged.
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
    """Stand-in for asynchronous commands of redis-py, which are fully imported by the first call."""
    return await importlib.import_module(_RECORDER).record_streaming_lag_from_response(*args, **options)


def _attribute(name: str) -> Any:
    """Lazy import of `redis.asyncio` on attribute access."""
    if name == "asyncio":
        return importlib.import_module(_ASYNCIO)
    raise AttributeError(f"module 'redis' has no attribute {name!r}")
