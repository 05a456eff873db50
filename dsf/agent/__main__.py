"""`python -m dsf.agent`: the agent without the command line around it."""

import sys

from dsf import lean


def main() -> int:
    """Run with the settings of the environment."""
    lean.start()
    from dsf.agent.main import EXIT_SETTINGS, run
    from dsf.errors import SettingsError
    from dsf.settings import Settings

    try:
        config = Settings.load()
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
