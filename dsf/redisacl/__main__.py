"""`python -m dsf.redisacl`: writes the ACL file with the hub's users, before Redis starts.

    python -m dsf.redisacl --passwords /etc/dsf/users --file /data/users.acl

The folder contains a file with the password of each role (`hub`, `beat`, ...), like a mounted Secret. The ACL file
contains only hashes, and keeps its users of managed clusters. Without `--file`, the text is printed. Roles without a
password get no user, and are named on standard error.

    python -m dsf.redisacl --rules > deploy/helm/files/users.acl

This prints the users of all roles, with roles in place of hashes. A shell script of the chart inserts the hashes.
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
from dsf.redisacl.users import make_hub_users, render_acl_file, render_acl_template

#: Roles with the controller, one of which needs a password: the process with all services, or the controller alone.
_CONTROLLERS: Final[tuple[str, ...]] = ("hub", "controller")
_MIN_PASSWORD_CHARACTERS: Final = 16


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit code: 2 if a file or a password cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m dsf.redisacl", description="Write Redis' ACL file.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--passwords", type=Path, help="folder with a file per role")
    source.add_argument("--rules", action="store_true", help="print all users, with roles in place of hashes")
    parser.add_argument("--file", type=Path, help="the ACL file; default: print it")
    options = parser.parse_args(arguments)
    if options.rules:
        sys.stdout.write(render_acl_template())
        return 0
    try:
        passwords = _read_passwords(options.passwords)
        existing_text = options.file.read_text(encoding="utf-8") if options.file and options.file.exists() else ""
        text = render_acl_file(make_hub_users(passwords), existing_text)
        if options.file is None:
            sys.stdout.write(text)
        else:
            _write_file(options.file, text)
    except SettingsError as error:
        print(f"dsf.redisacl: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"dsf.redisacl: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    skipped_roles = [role for role in hub_roles() if role not in passwords]
    if skipped_roles:
        roles_text = ", ".join(skipped_roles)
        print(f"dsf.redisacl: no user for {roles_text}: no such file in {options.passwords}", file=sys.stderr)
    if options.file is not None:
        print(f"dsf.redisacl: wrote {options.file} with users for {', '.join(passwords)}", file=sys.stderr)
    return 0


def _read_passwords(folder: Path) -> dict[str, str]:
    """Return the passwords by role. Raises SettingsError if one is too short, or if there is none for a controller."""
    passwords: dict[str, str] = {}
    for role in hub_roles():
        file = folder / role
        if file.is_file():
            password = file.read_text(encoding="utf-8").strip()
            if len(password) < _MIN_PASSWORD_CHARACTERS:
                raise SettingsError(f"{file}: a password of at least {_MIN_PASSWORD_CHARACTERS} characters is needed")
            passwords[role] = password
    if not any(role in passwords for role in _CONTROLLERS):
        raise SettingsError(
            f"{folder}: no file with a password for hub (a process with all services) or controller (services apart)"
        )
    return passwords


def _write_file(file: Path, text: str) -> None:
    """Replace the file atomically. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with open(descriptor, "w", encoding="utf-8") as stream:
        # Let the group read the file, because Redis may run as another user.
        os.fchmod(descriptor, 0o640)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    Path(temporary).replace(file)


if __name__ == "__main__":
    sys.exit(main())
