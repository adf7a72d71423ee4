"""Run by gpu_check.sh: checks and times the kernels, prints a table, and writes kernels.csv and system.json."""

from __future__ import annotations

import argparse
import csv
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARES = {"probe": 0.85, "overlap": 0.85, "verify": 0.85, "markov": 1 / 1.2}  # of the copy bandwidth, on an H200
SCHEDULE_MICROSECONDS = 50.0
FIELDS = (
    "kernel", "dtype", "shape", "variant", "microseconds", "spread", "bytes", "gigabytes_per_second", "share_of_copy",
    "error", "tolerance", "right", "note",
)  # fmt: skip


class SourceTree(importlib.abc.MetaPathFinder):
    """Finds companion.kernels where it lies in the source tree; an installation maps it there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "companion.kernels":
            return None
        folder = ROOT / "kernels" / "companion_kernels"
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU, under Triton's interpreter")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds after which nothing new is timed")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu_check", help="folder of the results")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"
    sys.meta_path.insert(0, SourceTree())
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    import torch

    if not options.dry and not torch.cuda.is_available():
        print("no CUDA device; --dry walks through the checks on a CPU", file=sys.stderr)
        return 2
    return check(options, torch.device("cpu" if options.dry else "cuda"))


def check(options: argparse.Namespace, device: Any) -> int:
    import torch
    from gpu_cases import cases
    from gpu_timing import copy_bandwidth, median_seconds

    begun = time.monotonic()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth(device, options.dry)
    print(f"copy bandwidth {bandwidth / 1e9:.0f} GB/s", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for build in cases(options.dry):
        if options.only not in build.name:
            continue
        case = build(device)
        note = ""
        try:
            error = float(case.error(*case.inputs[0]))
        except Exception as failure:  # one kernel that fails to compile must not hide the others
            error, note = math.inf, f"{type(failure).__name__}: {failure}".splitlines()[0][:160]
        right = error <= case.tolerance
        judged = {"kernel": case.name, "dtype": case.dtype, "shape": case.shape, "bytes": case.bytes}
        variants = {"kernel": case.kernel, "plain": case.plain}
        if not options.dry and case.compile:
            variants["compiled"] = torch.compile(case.plain, dynamic=False)
        for variant, function in variants.items():
            calls = [partial(function, *x) for x in case.inputs]
            row = judged | {"variant": variant, "note": note if variant == "kernel" else ""}
            if variant == "kernel":
                row |= {"error": f"{error:.3g}", "tolerance": case.tolerance, "right": right}
            if math.isfinite(error) and time.monotonic() - begun < options.limit:
                row |= timed(calls, case.bytes, bandwidth, device, median_seconds)
            else:
                row["note"] = row["note"] or "not timed: the limit was reached"
            rows.append(row)
            print(line(row), flush=True)
            write(rows, FIELDS, options.output / "kernels.csv")
        del case, variants
        if device.type == "cuda":
            torch.cuda.empty_cache()
    describe(options.output / "system.json", device, bandwidth, time.monotonic() - begun)
    wrong = [row for row in rows if row.get("right") is False]
    for row in () if options.dry else rows:
        if missed := goal_missed(row):
            print(f"goal missed: {row['kernel']}, {row['dtype']}, {row['shape']}: {missed}")
    print(f"{len(rows)} rows, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s; see {options.output}")
    if not rows:
        return 3
    return 1 if wrong else 0


def goal_missed(row: dict[str, Any]) -> str:
    """What a timed kernel falls short of; empty when nothing."""
    if row["variant"] != "kernel" or "microseconds" not in row:
        return ""
    if row["kernel"].startswith("schedule") and row["microseconds"] > SCHEDULE_MICROSECONDS:
        return f"{row['microseconds']} us instead of {SCHEDULE_MICROSECONDS}"
    share = SHARES.get(row["kernel"].split(",")[0], 0.0)
    return f"{row['share_of_copy']:.2f} of the copy bandwidth instead of {share:.2f}" * (row["share_of_copy"] < share)


def timed(
    calls: Sequence[Callable[[], Any]], count: int, bandwidth: float, device: Any, median_seconds: Callable[..., Any]
) -> dict[str, Any]:
    try:
        seconds, spread, note = median_seconds(calls, device)
    except Exception as failure:  # a plain version that does not fit, a compiler that is missing: no time, and why
        return {"note": f"{type(failure).__name__}: {failure}".splitlines()[0][:160]}
    return {
        "microseconds": round(1e6 * seconds, 2),
        "spread": round(spread, 3),
        "gigabytes_per_second": round(count / seconds / 1e9, 1),
        "share_of_copy": round(count / seconds / bandwidth, 3),
        "note": note,
    }


def line(row: dict[str, Any]) -> str:
    verdict = {True: "right", False: "WRONG", None: ""}[row.get("right")]
    took, share = row.get("microseconds"), row.get("share_of_copy")
    numbers = "" if took is None else f"{took:12.1f} us {100 * share:6.1f} % of copy"
    name = f"{row['kernel']}, {row['dtype']}, {row['shape']}"
    return (
        f"{name:72} {row['variant']:9} {verdict:6} {row.get('error', ''):>9} {numbers} {row.get('note', '')}".rstrip()
    )


def write(rows: Sequence[dict[str, Any]], fields: Sequence[str], path: Path) -> None:
    with path.with_suffix(".part").open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, restval="")
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".part").replace(path)


def describe(path: Path, device: Any, bandwidth: float, seconds: float, **more: Any) -> None:
    """What the numbers were measured on."""
    import numpy
    import torch
    import triton

    system: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "copy_bytes_per_second": bandwidth,
        "run_seconds": round(seconds, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "interpreted": device.type != "cuda",
        **more,
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        system |= {
            "gpu": about.name,
            "capability": f"{about.major}.{about.minor}",
            "multiprocessors": about.multi_processor_count,
            "memory_bytes": about.total_memory,
            "cache_bytes": getattr(about, "L2_cache_size", None),
            "cuda": torch.version.cuda,
            "clocks": _output("nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,driver_version", "--format=csv,noheader"),
        }
    path.write_text(json.dumps(system, indent=1) + "\n")


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
