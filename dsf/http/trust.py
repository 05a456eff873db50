"""Which CAs are trusted by requests over https: the public ones, and those in a folder of the operator's."""

from __future__ import annotations

import ssl
from pathlib import Path

from urllib3.util.ssl_ import create_urllib3_context

import dsf.log
from dsf.errors import SettingsError

log = dsf.log.get(__name__)

_folder: Path | None = None
#: Files that were said to be of no use, so that each is said once.
_said: set[tuple[Path, str]] = set()


def use_folder(folder: Path | None) -> None:
    """Trust the CAs in the PEM files of this folder as well, in the whole process.

    Raises SettingsError when the folder or a file in it cannot be used.
    """
    global _folder  # noqa: PLW0603 - one per process, as with the aliases of hosts
    if folder is not None:
        try:
            for file in _files(folder):
                ssl.create_default_context().load_verify_locations(cafile=file)
        except ssl.SSLError as error:
            raise SettingsError(
                f"DSF_TRUSTED_CA_DIR: {file} has no certificate in PEM ({error.reason or error}); remove or mend it"
            ) from None
        except OSError as error:
            raise SettingsError(
                f"DSF_TRUSTED_CA_DIR: cannot read {error.filename or folder}: {error.strerror}"
            ) from None
    _folder = folder


def context() -> ssl.SSLContext | None:
    """For one connection; None means the default. The public CAs are added by whoever connects.

    Read anew each time: a mounted ConfigMap changes while the process runs. A file that has become useless is logged
    and left out.
    """
    if _folder is None:
        return None
    made = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
    try:
        files = _files(_folder)
    except OSError as error:
        _say(_folder, error.strerror or str(error))
        return made
    for file in files:
        try:
            made.load_verify_locations(cafile=file)
        except (ssl.SSLError, OSError) as error:
            _say(file, str(error))
    return made


def _files(folder: Path) -> list[Path]:
    # Hidden ones are Kubernetes' own links.
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _say(path: Path, problem: str) -> None:
    if (path, problem) not in _said:
        _said.add((path, problem))
        log.error("trusted CA cannot be used", file=str(path), error=problem)
