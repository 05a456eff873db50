"""Builds stand-ins of base images from Debian packages and registry packages."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.node.lab import engine, folders
from tests.node.lab.command import LabError, run, say
from tests.node.lab.noderuntime import PAUSE, NodeRuntime

#: The Debian of the project's own base image, and the one with the oldest Redis that the docs call good enough.
_SUITES = ("trixie", "bookworm")
COREDNS = "registry.k8s.io/coredns/coredns:v1.15.0"
PROMETHEUS, NODE_EXPORTER = "prom/prometheus:v3.5.0", "prom/node-exporter:v1.9.1"
VALKEY, REDIS = "valkey/valkey:9.1.2-trixie", "redis:7.4.6-bookworm"


def base_image(stage: str) -> str:
    """Return the image of a stage of the project's Dockerfile, by its tag: builds here have no digests."""
    match = re.search(rf"^FROM (\S+)@sha256:\S+ AS {stage}$", (folders.ROOT / "Dockerfile").read_text(), re.MULTILINE)
    if match is None:
        raise LabError(f"the Dockerfile has no image with a digest for {stage}")
    return match[1]


PYTHON = base_image("interpreter")
#: Folder below tests/node/images (and target, if any) -> the names that the project's files use.
STAND_INS: dict[tuple[str, str], tuple[str, ...]] = {
    ("pause", ""): (PAUSE,),
    ("python", ""): (PYTHON,),
    ("valkey", ""): (VALKEY,),
    # The pods behind Sentinel, so that both servers run in some test.
    ("redis", ""): (REDIS,),
    ("prometheus", "prometheus"): (PROMETHEUS,),
    ("prometheus", "node-exporter"): (NODE_EXPORTER,),
}


def pulled(cluster: str) -> tuple[str, ...]:
    """Return the images that the node of a cluster would pull from registries if it had access to them."""
    return (PAUSE, COREDNS, *((VALKEY, REDIS) if cluster == "hub" else (PROMETHEUS, NODE_EXPORTER)))


def make_bases(programs: Callable[[], Path]) -> None:
    """Build the stand-ins that are missing or whose folder has changed. The one that needs a program comes last."""
    for suite in _SUITES:
        if not engine.image_id(f"local/debian:{suite}"):
            _debootstrap(suite)
    _make("uv", "", (base_image("uv"),), {"uv": _uv()})
    authorities = Path("/etc/ssl/certs/ca-certificates.crt")
    files = {"pause": {"catatonit": Path("/usr/bin/catatonit")}, "python": {"ca-certificates.crt": authorities}}
    for (folder, target), names in STAND_INS.items():
        _make(folder, target, names, files.get(folder, {}))
    _make("coredns", "", (COREDNS,), {"coredns": programs() / "coredns"})


def load(node: NodeRuntime, *images: str) -> None:
    """Put images of the engine into a node, unless it has just these."""
    book = node.images.with_suffix(".json")
    have: dict[str, str] = json.loads(book.read_text()) if book.exists() else {}
    image_ids = {image: engine.image_id(image) for image in images}
    if absent := [image for image, current in image_ids.items() if not current]:
        raise LabError(f"there is no image {', '.join(absent)} to load into {node.name}")
    outdated_images = [image for image, current in image_ids.items() if have.get(image) != current]
    if not outdated_images:
        return
    # All in one archive, which has shared layers only once.
    command = [*node_client(node), "images", "import", "-"]
    with subprocess.Popen(engine.docker("save", *outdated_images), stdout=subprocess.PIPE) as saved:
        load_process = subprocess.run(
            command, stdin=saved.stdout, capture_output=True, text=True, timeout=900, check=False
        )
    if load_process.returncode or saved.returncode:
        raise LabError(f"{node.name} does not take {', '.join(outdated_images)}: {load_process.stderr.strip()[-500:]}")
    book.write_text(json.dumps(have | image_ids, indent=1))


def node_client(node: NodeRuntime) -> list[str]:
    """Return the command line of containerd's client there."""
    return [str(node.programs / "ctr"), "-a", str(node.socket), "-n", "k8s.io"]


def _debootstrap(suite: str) -> None:
    say(f"making a base image of Debian {suite} (1 to 3 minutes, once)")
    archive = folders.CACHE / "debian.tar"
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    # Where the machine is another Debian, the usual mirror.
    apt_sources = [sources] if sources.exists() and suite in sources.read_text() else []
    included = "--include=ca-certificates,netbase,tzdata"
    log = folders.LOGS / "mmdebstrap.log"
    run(
        "mmdebstrap",
        "--variant=minbase",
        included,
        "--format=tar",
        suite,
        archive,
        *apt_sources,
        timeout=1800,
        log=log,
    )
    run(*engine.docker("import", archive, f"local/debian:{suite}"), timeout=300)
    archive.unlink()


def _make(folder: str, target: str, names: tuple[str, ...], files: dict[str, Path]) -> None:
    source = folders.HERE / "images" / folder
    digest = hashlib.sha256(f"{target} {names}".encode())
    for path in [*sorted(source.iterdir()), *files.values()]:
        digest.update(path.read_bytes())
    label = digest.hexdigest()[:16]
    label_format = '--format={{index .Config.Labels "dsf.test"}}'
    if all(_succeeding(engine.docker("image", "inspect", label_format, name)) == label for name in names):
        return
    say(f"making a stand-in of {names[0]}")
    context = folders.CACHE / "contexts" / folder
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(source, context)
    for name, path in files.items():
        shutil.copy2(path, context / name)
    options = ["--label", f"dsf.test={label}", *(["--target", target] if target else [])]
    engine.build(context, names[0], *options)
    for other in names[1:]:
        run(*engine.docker("tag", names[0], other))
    shutil.rmtree(context)


def _succeeding(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _uv() -> Path:
    """Return the uv that scripts/uv keeps, or the one on PATH that it uses."""
    run(folders.ROOT / "scripts" / "uv", "--version", timeout=600)
    version = re.search(r"^VERSION=(.*)$", (folders.ROOT / "scripts" / "uv").read_text(), re.MULTILINE)
    cached = folders.CACHE.parent / f"uv-{version[1] if version else ''}" / "bin" / "uv"
    uv_path = cached if cached.exists() else Path(shutil.which("uv") or cached)
    if not uv_path.exists():
        raise LabError(f"no uv: neither {cached} nor one on PATH")
    return uv_path
