"""What the status page shows: the machine, the versions, and when each notebook ran and for how long."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from companion.book.execute import Execution
from companion.provenance import collect

PACKAGES = (
    "companion",
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    "papermill",
    "nbclient",
    "ipykernel",
    "jupyter-book",
    "Sphinx",
)


def status_tables(runs: Mapping[Path, Execution]) -> dict[str, str]:
    """Markdown tables by name: ``machine``, ``versions``, ``notebooks``."""
    return {
        "machine": _table(("", "this build"), _machine()),
        "versions": _table(("package", "version"), ((name, _version(name)) for name in PACKAGES)),
        "notebooks": _table(
            ("notebook", "executed (UTC)", "seconds"),
            ((f"[{path.stem}](/notebooks/{path.name})", run.finished[:16].replace("T", " "), f"{run.seconds:.0f}")
             for path, run in runs.items()),
        ),
    }  # fmt: skip


def _machine() -> list[tuple[str, str]]:
    provenance = collect()
    record, harness = provenance["system"], provenance["harness"]
    commit = str(harness.get("commit", "not a git checkout"))[:12] + (
        ", with local changes" if harness.get("dirty") else ""
    )
    rows = [
        ("source", commit),
        ("processor", f"{record['processor']} ({record['machine']})"),
        ("cores", str(record["cores"])),
        ("memory", f"{_memory_gib():.0f} GiB"),
        ("operating system", str(record["os"])),
        ("Python", str(record["python"])),
    ]
    gpu = f"{record['gpu']}, {record['gpu_memory_gib']} GiB, CUDA {record['cuda']}" if "gpu" in record else "none"
    return [*rows, ("GPU", gpu)]


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
