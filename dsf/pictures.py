"""Pictures for users, by matplotlib of the extra `plot`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsf.errors import ToolError
from dsf.extras import describe_missing_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg")


def check(path: Path) -> None:
    """Raise ToolError unless `save` could write this file, as far as can be seen."""
    if path.suffix.lower() not in FORMATS:
        raise ToolError(f"cannot draw {path}: the name has to end in {' or '.join(FORMATS)}")
    writable_path = path if path.exists() else path.absolute().parent
    if not os.access(writable_path, os.W_OK) or path.is_dir():
        raise ToolError(f"cannot write {path}: {writable_path} is no folder or file that may be written")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ToolError(describe_missing_extra("plot", "a picture")) from error


def save(figure: Figure, path: Path) -> None:
    """Write the picture: equal data give equal bytes. Raises ToolError."""
    import matplotlib

    # Write no date and fixed ids, so that the same plan makes the same file.
    with matplotlib.rc_context({"svg.hashsalt": "dsf", "svg.fonttype": "none"}):
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise ToolError(f"cannot write {path}: {error.strerror or error}") from error
