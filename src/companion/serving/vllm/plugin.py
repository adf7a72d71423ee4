"""The plug-in that every vLLM of this environment finds: our scheduler, where an environment variable asks for it.

    companion vllm options --target Qwen/Qwen3-4B --policy '{"think": 2, "output": 7}' > options.json
    COMPANION_VLLM_OPTIONS=options.json vllm serve Qwen/Qwen3-4B --speculative-config '{...}'

Without the variable nothing happens. With it the scheduler that vLLM chooses, synchronous or not, is ours of the same
kind; ``--scheduler-cls`` names one by hand, but a name alone makes some releases switch asynchronous scheduling off.
A ``scheduler_cls`` that is given is left alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from companion.serving.vllm.options import TABLE, Options

VARIABLE = "COMPANION_VLLM_OPTIONS"


def options_of(additional: Any) -> Options:
    """From vLLM's ``additional_config``, or from the file that the environment names. ValueError without either."""
    path = os.environ.get(VARIABLE)
    if path and not (isinstance(additional, dict) and TABLE in additional):
        return read_options(Path(path))
    return Options.from_config(additional)


def read_options(path: Path) -> Options:
    """From a file that `companion vllm options` printed. ValueError for one that cannot be read or is none."""
    try:
        return Options.from_config(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{VARIABLE} names {path}, which cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{VARIABLE} names {path}, which is no file of companion vllm options: {error}") from error


def register() -> None:
    """Called by vLLM in each of its processes, more than once perhaps. ValueError where the file is broken."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    read_options(Path(path))
    from vllm.config.scheduler import SchedulerConfig

    chosen = SchedulerConfig.get_scheduler_cls

    def get_scheduler_cls(self: Any) -> Any:
        if self.scheduler_cls is not None:
            return chosen(self)
        from companion.serving.vllm_scheduler import AsyncPolicyScheduler, PolicyScheduler

        return AsyncPolicyScheduler if self.async_scheduling else PolicyScheduler

    SchedulerConfig.get_scheduler_cls = get_scheduler_cls
