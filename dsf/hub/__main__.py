"""`python -m dsf.hub`."""

import sys

from dsf import lean


def main() -> int:
    """Run with the settings of the environment."""
    lean.start()
    from dsf.errors import SettingsError
    from dsf.hub.main import USAGE, run
    from dsf.settings import Settings

    try:
        settings = Settings.load()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
