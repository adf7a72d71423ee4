"""A real vLLM server on a CPU, our plug-in inside it, measured through HTTP by `companion vllm measure`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from companion.engine.load import find_model
from companion.rounds import Rounds
from companion.serving.vllm.release import installed_release

pytestmark = pytest.mark.skipif(
    installed_release() is None, reason="vLLM is not installed (make test-vllm installs it)"
)


def companion_verb(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "companion", "vllm", *map(str, arguments)], capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server that drafts with a copy of the target, one token inside the span and three outside."""
    folder = tmp_path_factory.mktemp("server")
    log, options, output = folder / "log.jsonl", folder / "options.json", folder / "server.txt"
    told = companion_verb("options", "--policy", '{"think": 1, "output": 3}', "--log", log)
    options.write_text(told.stdout, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = str(find_model("tiny-qwen3").path)
    command = [str(Path(sys.executable).with_name("vllm")), "serve", model, "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "8", "--per-request-spec-decode-metrics", "detailed"]
    speculative = {"method": "draft_model", "model": model, "num_speculative_tokens": 4}
    command += ["--speculative-config", json.dumps(speculative)]
    environment = os.environ | {"COMPANION_VLLM_OPTIONS": str(options), "VLLM_CPU_KVCACHE_SPACE": "1"}
    with output.open("w") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
    try:
        for _ in range(300):
            time.sleep(1)
            if process.poll() is not None:
                raise AssertionError(output.read_text(encoding="utf-8")[-4000:])
            try:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (URLError, OSError):
                continue
        yield f"http://127.0.0.1:{port}", log
    finally:
        process.terminate()
        process.wait(60)


def test_the_policy_in_the_server_is_measured_from_outside(served: tuple[str, Path], tmp_path: Path) -> None:
    url, log = served
    rounds = tmp_path / "rounds.jsonl"
    asked = ["--drafter", "tiny-qwen3", "--method", "draft_model", "--depth", 4, "--per-domain", 2]
    told = ["--policy", '{"think": 1, "output": 3}', "--log", log, "--temperature", 0, "--max-new-tokens", 60]
    done = companion_verb("measure", "--server", url, "--output", rounds, *asked, *told, "--group", 4)
    assert done.returncode in (0, 3), done.stderr
    table = Rounds.load(rounds)
    assert {(r.phases[0], r.verified) for r in table} <= {("think", 1), ("output", 3)}
    assert len({r.prompt_id for r in table}) == 6
    assert table.provenance is not None
    assert table.provenance["harness"]["version"] == installed_release()
