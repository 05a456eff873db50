"""`python -m dsf.redisacl`: writes the ACL file with the hub's users, before Redis starts.

    python -m dsf.redisacl --passwords /etc/dsf/users --file /data/users.acl

Passwords are files named after the roles (`hub`, `beat`, ...), as a mounted Secret has them; only their hashes are
written. Users of managed clusters that are in the file already stay. Without `--file` the text is printed. Roles
without a file get no user, and are named.

    python -m dsf.redisacl --rules > deploy/helm/files/users.acl

The same with roles in place of hashes, for the chart: there a shell script in Redis' own image puts the hashes in.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from dsf.errors import SettingsError
from dsf.redisacl.rules import hub_roles
from dsf.redisacl.users import acl_template, hub_users, render_acl_file

#: Either of these has a password: that of the process with all services, or that of the controller's own.
_CONTROLLERS: Final[tuple[str, ...]] = ("hub", "controller")
_SHORTEST: Final = 16


def main(arguments: list[str] | None = None) -> int:
    """Run with these arguments; returns the exit code, 2 for invalid arguments."""
    parser = argparse.ArgumentParser(prog="python -m dsf.redisacl", description="Write Redis' ACL file.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--passwords", type=Path, help="folder with a file per role")
    source.add_argument("--rules", action="store_true", help="print all users, with roles in place of hashes")
    parser.add_argument("--file", type=Path, help="the ACL file; default: print it")
    options = parser.parse_args(arguments)
    if options.rules:
        sys.stdout.write(acl_template())
        return 0
    try:
        passwords = _passwords(options.passwords)
        existing = options.file.read_text(encoding="utf-8") if options.file and options.file.exists() else ""
        text = render_acl_file(hub_users(passwords), existing)
        if options.file is None:
            sys.stdout.write(text)
        else:
            _write(options.file, text)
    except SettingsError as error:
        print(f"dsf.redisacl: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"dsf.redisacl: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    left_out = [role for role in hub_roles() if role not in passwords]
    if left_out:
        print(f"dsf.redisacl: no user for {', '.join(left_out)}: no such file in {options.passwords}", file=sys.stderr)
    if options.file is not None:
        print(f"dsf.redisacl: wrote {options.file} with users for {', '.join(passwords)}", file=sys.stderr)
    return 0


def _passwords(folder: Path) -> dict[str, str]:
    passwords: dict[str, str] = {}
    for role in hub_roles():
        file = folder / role
        if file.is_file():
            password = file.read_text(encoding="utf-8").strip()
            if len(password) < _SHORTEST:
                raise SettingsError(f"{file}: a password of at least {_SHORTEST} characters is needed")
            passwords[role] = password
    if not any(role in passwords for role in _CONTROLLERS):
        raise SettingsError(
            f"{folder}: no file with a password for hub (a process with all services) or controller (services apart)"
        )
    return passwords


def _write(file: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with open(descriptor, "w", encoding="utf-8") as stream:
        # Redis may run as another user of the same group.
        os.fchmod(descriptor, 0o640)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    Path(temporary).replace(file)


if __name__ == "__main__":
    sys.exit(main())
