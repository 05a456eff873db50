"""`python -m dsf.hub`."""

import sys

from dsf.errors import SettingsError
from dsf.hub.main import USAGE, run
from dsf.settings import Settings

if __name__ == "__main__":
    try:
        settings = Settings.load()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(USAGE)
    sys.exit(run(settings))
