"""llm-forecast-scorer with a real llama.cpp server, where `xllamacpp` and `gguf` are installed; skipped elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import requests

from tests.integration.samples.conftest import Start, series
from tests.support.child import Child
from tests.support.wait import wait_for

# The packages are not imported here, because all test processes load this module, and one process runs its tests.
pytestmark = pytest.mark.skipif(
    not (find_spec("xllamacpp") and find_spec("gguf")), reason="xllamacpp and gguf are not installed"
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server."""
    folder = tmp_path_factory.mktemp("llama")
    command = [sys.executable, "-m", "tests.integration.samples.llamaserver", str(folder / "tiny.gguf")]
    child = Child(command, folder / "log", dict(os.environ), inherit=False)
    try:
        # The server's own log is mixed in, also in the middle of lines.
        address_match = wait_for(
            lambda: re.search(r"address (http://[\d.]+:\d+)", child.log.read_text()), 60, f"llama.cpp: {child.log}"
        )
        yield address_match[1]
    finally:
        child.kill()


def test_meaningless_model_output_produces_no_score(llama: str, llm_forecast: Start) -> None:
    url = llm_forecast(VLLM_ENDPOINT=llama, MODEL_NAME="tiny", MAX_SAMPLES="8", INFERENCE_TIMEOUT="20")
    body = {"data": [series(["0.1", "0.2", "0.3"], pod=f"p{at}") for at in range(4)]}
    response = requests.post(f"{url}/scoring", json=body, timeout=300)
    assert (response.status_code, "Retry-After" in response.headers) == (503, True)
    assert response.json().keys() == {"detail"}
    assert "the language model gave no usable number: the answer is no number" in response.json()["detail"]
