"""`helm test`: Redis, the page and every service of the hub answer, and one cycle goes to an agent and back.

    python test-installation.py PAGE PROBE...

PAGE is the URL of the page, each PROBE that of the /readyz of a process. Redis and its user are in the environment, for
`dsf`. Without a scorer, there is no cycle to test yet, which is no failure. Exit code 1 says what does not work.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

#: Seconds for all processes to become ready: a fresh installation is still starting.
PATIENCE = 120.0


def main(page, probes):
    """Print a line for each part that works; return the exit code."""
    deadline = time.monotonic() + PATIENCE
    for url in probes:
        if problem := _wait(url, deadline, is_ready):
            print(f"{url}: {problem}", file=sys.stderr)
            return 1
        print(f"ready: {url}")
    if problem := _wait(page, deadline, is_answering):
        print(f"the page, {page}: {problem}", file=sys.stderr)
        return 1
    print(f"the page answers: {page}")
    # Redis may restart meanwhile.
    while (listing := _list_scorers()).returncode and time.monotonic() < deadline:
        time.sleep(1)
    if listing.returncode:
        print(f"Redis: {listing.stderr.strip()}", file=sys.stderr)
        return 1
    print("Redis can be read")
    scorers = [entry["scorer"] for entry in json.loads(listing.stdout)["entries"]]
    if not scorers:
        print("no scorer yet, so there is no cycle to test: apply a DynamicScorer, and run this again")
        return 0
    return _dsf("rescore", scorers[0], "--wait", "--timeout", "2m").returncode


def is_ready(status):
    """Whether a process says with this status that all its services work."""
    return status == 200


def is_answering(status):
    """Whether the page works: a login that is missing is none of its faults."""
    return status < 500


def _list_scorers():
    return _dsf("schedule", "list", "-o", "json", capture_output=True)


def _dsf(*words, **options):
    return subprocess.run(["dsf", *words], text=True, check=False, **options)  # noqa: S607 (the image's own)


def _wait(url, deadline, is_good):
    """Return an empty text after the first good response, or the reason why no response was good until the deadline."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 (the chart's own URLs)
                status, text = response.status, ""
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read(1000).decode(errors="replace").strip()
        except OSError as error:
            status, text = 599, str(error)
        if is_good(status):
            return ""
        if time.monotonic() > deadline:
            return f"status {status} {text}" if status < 599 else text
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
