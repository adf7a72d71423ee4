"""Where a result came from: collected once, stored beside every number."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import platform
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

READABLE = 100_000  # characters


def collect(
    *,
    target: Mapping[str, Any] | None = None,
    drafter: Mapping[str, Any] | None = None,
    thinking: bool | str | None = None,
    sampling: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (),
    prompts: Iterable[str] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """A JSON-ready record: what ran (models with their hashes), how (sampling, seeds, prompt-set hash), where and when.

    ``target`` and ``drafter`` are what `describe` of `companion.engine.load` returns: name, revision or weights hash,
    dtype.
    """
    return {
        "harness": {"name": "companion", "version": _version("companion"), **_git()},
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": dict(target) if target else None,
        "drafter": dict(drafter) if drafter else None,
        "thinking": thinking,
        "sampling": dict(sampling) if sampling else None,
        "seeds": list(seeds),
        "prompt_set": None if prompts is None else prompt_hash(prompts),
        "settings": settings,
        "system": system(),
    }


def system() -> dict[str, Any]:
    """The machine and the versions that decide numbers and timings."""
    import torch

    record: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "os": platform.system(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "tokenizers", "numpy", "triton")},
    }
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        record |= {
            "gpu": device.name,
            "gpu_memory_gib": round(device.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    return record


def prompt_hash(prompts: Iterable[str]) -> str:
    """sha256 over the prompts in order; equal sets in equal order have equal hashes."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(hashlib.sha256(prompt.encode()).digest())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def shortened(record: Any, digits: int = 6) -> Any:
    """A JSON-ready record with floats to so many significant digits: no measured time, and no interval, has more."""
    match record:
        case float():
            return float(f"{record:.{digits}g}")
        case dict():
            return {key: shortened(value, digits) for key, value in record.items()}
        case list() | tuple():
            return [shortened(value, digits) for value in record]
    return record


def write_json(path: Path, record: Any) -> None:
    """Write a JSON file whole or not at all: indented, unless it is too long for anybody to read it, and compressed
    where its name ends in .gz."""
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    if len(text) > READABLE:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    content = f"{text}\n".encode()
    write_atomic(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def stored_text(path: Path) -> str:
    """The text of a file that `write_json` wrote. OSError when it cannot be read, or is cut off."""
    content = path.read_bytes()
    try:
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise OSError(errno.EIO, "the file is damaged") from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write beside the file, then rename: a killed run leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
        handle.write(content.encode() if isinstance(content, str) else content)
        handle.flush()
        os.fsync(handle.fileno())
    os.chmod(handle.name, 0o644)
    os.replace(handle.name, path)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _git() -> dict[str, Any]:
    """Commit and whether the tree was changed; empty outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def run(*command: str) -> str:
        return subprocess.run(
            ("git", *command), cwd=root, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"commit": run("rev-parse", "HEAD"), "dirty": bool(run("status", "--porcelain", "--", "src", "kernels"))}
    except (OSError, subprocess.SubprocessError):
        return {}
