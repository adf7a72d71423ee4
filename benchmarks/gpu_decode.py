"""Run by gpu_decode.sh: times decoding against its floors, prints a table, and writes decode.csv and system.json."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_check import ROOT, SourceTree, describe, write

FIELDS = (
    "section", "target", "drafter", "dtype", "variant", "batch", "tokens", "context", "milliseconds", "spread",
    "bytes", "floor_milliseconds", "over_floor", "over_plain", "acceptance", "tokens_per_second", "speedup",
    "host_waits", "megabytes", "share_of_target", "right", "note",
)  # fmt: skip
GOALS = {"plain step": 1.15, "round": 1.25}  # times the floor, at batch 1, on an H200
VERIFY_GOAL = 1.1  # times the plain step, 8 tokens at batch 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--shapes", default="Qwen/Qwen3-4B", help="a dense Qwen3 of the hub, or tiny; weights are drawn"
    )
    parser.add_argument("--model", help="a folder of real weights instead, in the hub's layout")
    parser.add_argument("--drafter", help="a folder of a real DSpark or DFlash drafter for it")
    parser.add_argument("--context", type=int, help="tokens in the cache of each request (512; tiny: 24)")
    parser.add_argument("--limit", type=float, default=450.0, help="seconds after which nothing new is timed")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu_decode", help="folder of the results")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.meta_path.insert(0, SourceTree())
    sys.path[:0] = [str(ROOT / "src")]
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device; --device cpu --shapes tiny walks through the steps on a CPU", file=sys.stderr)
        return 2
    try:
        return measure(options, torch.device(options.device))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def measure(options: argparse.Namespace, device: Any) -> int:
    import torch
    from gpu_sections import Bench, sections
    from gpu_timing import copy_bandwidth

    from companion.drafters.load import load_drafter
    from companion.engine.load import load_target

    begun = time.monotonic()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth(device, device.type != "cuda")
    tiny = options.shapes == "tiny" and not options.model
    name = options.model or ("tiny-qwen3" if tiny else options.shapes)
    target = load_target(name, device=device, random_weights=not options.model)
    drafter = load_drafter(options.drafter or "dspark", target, random_weights=not options.drafter)
    print(f"{target.name} with {drafter.name}, {target.source['dtype']}, copy bandwidth {bandwidth / 1e9:.1f} GB/s")
    batches, lengths = ((1, 3), (1, 2, 8)) if tiny else ((1, 2, 4, 8, 16, 32, 64), tuple(range(1, 17)))
    bench = Bench(target, drafter, bandwidth, options.context or (24 if tiny else 512), batches, lengths)
    common = {"target": target.name, "drafter": drafter.name, "dtype": target.source["dtype"], "context": bench.context}
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for section in sections(bench):
        for row in limited(section, begun + options.limit):
            rows.append(common | row)
            print(line(rows[-1]), flush=True)
            write(rows, FIELDS, options.output / "decode.csv")
    models = {"target": target.source, "drafter": drafter.name, "weights_drawn": not options.model}
    describe(options.output / "system.json", device, bandwidth, time.monotonic() - begun, **models)
    for missed in () if device.type != "cuda" else missed_goals(rows):
        print(f"goal missed: {missed}")
    wrong = [row for row in rows if row.get("right") is False]
    if device.type != "cuda":
        print("a walk through the steps on a CPU: these times and floors say nothing about a GPU")
    print(f"{len(rows)} rows, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s; see {options.output}")
    if not any("milliseconds" in row for row in rows):
        return 3
    return 1 if wrong else 0


def limited(section: Iterator[dict[str, Any]], until: float) -> Iterator[dict[str, Any]]:
    """The section's rows while there is time; a failure is a row as well and does not hide the other sections."""
    while time.monotonic() < until:
        try:
            yield next(section)
        except StopIteration:
            return
        except Exception as failure:
            yield {
                "section": "failed",
                "note": f"{type(failure).__name__}: {failure}".splitlines()[0][:200],
                "right": False,
            }
            return
    yield {"section": "cut", "note": "not timed: the limit was reached"}


def missed_goals(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row.get("variant") != "graphs" or row.get("batch") != 1:
            continue
        most = GOALS.get(row["section"])
        if most is not None and row["over_floor"] > most:
            yield f"{row['section']}: {row['over_floor']:.2f} times the floor instead of {most}"
        if row["section"] == "verify" and row["tokens"] == 8 and row["over_plain"] > VERIFY_GOAL:
            yield f"verify of 8 tokens: {row['over_plain']:.2f} times the plain step instead of {VERIFY_GOAL}"


SHOWN = {
    "milliseconds": "{:10.3f} ms", "over_floor": "{:7.2f} x floor", "over_plain": "{:6.2f} x plain",
    "host_waits": "{} host waits", "acceptance": "at a = {}", "tokens_per_second": "{:.0f} tokens/s",
    "speedup": "{:.2f} x", "megabytes": "{:.2f} MB", "share_of_target": "{:.4f} of the target", "note": "{}",
}  # fmt: skip


def line(row: dict[str, Any]) -> str:
    sizes = f"batch {row['batch']:>3} tokens {row['tokens']:>3}" if "batch" in row else ""
    shown = [f"{row['section']:16} {row.get('variant', ''):7} {sizes:20}"]
    shown += [text.format(row[key]) for key, text in SHOWN.items() if row.get(key) not in (None, "")]
    return "  ".join(shown) + ("  WRONG" if row.get("right") is False else "")


if __name__ == "__main__":
    raise SystemExit(main())
