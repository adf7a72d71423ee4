"""Compile every kernel for GPUs that are not here: ``python -m companion.kernels.ahead``.

Each kernel's module has ``EXAMPLES``: name -> a call of its launcher at the sizes of Qwen3, on tensors without values
(device ``meta``). The launches are recorded, specialised as Triton would at a launch (integers that are 1 or divisible
by 16, pointers to aligned storage) and compiled for each target. From the binary come registers, bytes spilled, shared
memory, and how many of its loads are 16 bytes wide. That it compiles is proven here; that it is right the interpreter
shows, and that it is fast only a GPU can.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import Launch, interpreting, recording
from companion.provenance import collect, write_json

FORMAT = "companion.kernels/1"
COMMAND = "python -m companion.kernels.ahead --output FILE"
TARGETS = (80, 90, 100)  # compute capability: A100, H100 and H200, B200
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes per thread block, CUDA programming guide

_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}


class Compiled(NamedTuple):
    """One kernel in one specialisation for one target; ``wide`` counts loads of 16 bytes per thread."""

    example: str
    kernel: str
    target: int  # compute capability, 90 is sm_90
    warps: int
    registers: int  # per thread
    spilled: int  # bytes per thread
    shared: int  # bytes per block
    loads: int  # from global memory, in the machine code
    wide: int


def examples() -> dict[str, list[Launch]]:
    """What each module's examples launch, by name; empty lists would mean that a launcher ran its reference."""
    found = {}
    for module in _modules():
        for name, call in getattr(module, "EXAMPLES", {}).items():
            with recording() as launches:
                call()
            found[name] = launches
    return found


def compile_launch(example: str, launch: Launch, target: int) -> Compiled:
    """Compile one recorded launch for compute capability ``target``. ValueError under the interpreter."""
    if interpreting():
        raise ValueError("TRITON_INTERPRET is set, and then there is nothing to compile; unset it and start again")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = specialise(launch)
    source = ASTSource(launch.kernel.compiled, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=dict(launch.options))
    usage, code = _disassemble(compiled.asm["cubin"])
    loads = re.findall(r"\b(?:LDG|LDGSTS|UBLKCP|UTMALDG)\.\S*", code)
    return Compiled(
        example,
        launch.kernel.__name__.strip("_"),
        target,
        compiled.metadata.num_warps,
        registers=int(usage["REG"]),
        spilled=int(usage["LOCAL"]) + int(usage["STACK"]),
        shared=int(compiled.metadata.shared),
        loads=len(loads),
        wide=sum(".128" in load or load.startswith("U") for load in loads),
    )


def specialise(launch: Launch) -> tuple[dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], Any]]:
    """Signature, constants and attributes, as Triton derives them from a launch's arguments."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    hints = launch.kernel.function.__annotations__
    for i, (name, value) in enumerate(launch.arguments.items()):
        if "constexpr" in str(hints.get(name, "")) or value is None or (type(value) is int and value == 1):
            signature[name], constants[(i,)] = "constexpr", value
            continue
        if isinstance(value, Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
            aligned = value.storage_offset() * value.element_size() % 16 == 0
        elif isinstance(value, bool):
            signature[name], aligned = "i1", False
        elif isinstance(value, int):
            signature[name], aligned = ("i32" if -(2**31) <= value < 2**31 else "i64"), value % 16 == 0
        else:
            signature[name], aligned = "fp32", False
        if aligned:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def compile_all(targets: Sequence[int] = TARGETS, named: str = "") -> list[Compiled]:
    """Every example whose name contains ``named``, for every target; launches that compile alike are there once."""
    made: dict[tuple[Any, ...], Compiled] = {}  # by what decides the binary
    found: dict[Compiled, None] = {}
    for name, launches in examples().items():
        for launch, target in product(launches if named in name else (), targets):
            key = (launch.kernel, str(specialise(launch)), str(launch.options), target)
            if key not in made:
                made[key] = compile_launch(name, launch, target)
            found[made[key]._replace(example=name)] = None
    return list(found)


def store(path: Path, rows: Sequence[Compiled]) -> None:
    """Write the table with where it came from; ``triton`` under ``system`` is the compiler, whose version decides."""
    origin = collect(targets=sorted({f"sm_{row.target}" for row in rows}))
    write_json(path, {"format": FORMAT, "provenance": origin, "kernels": [row._asdict() for row in rows]})


def load(path: Path) -> list[Compiled]:
    """The stored table. ValueError for what is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] == FORMAT:
            return [Compiled(**row) for row in record["kernels"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} holds no table of compiled kernels ({error}); make one: {COMMAND}") from error
    raise ValueError(f"{path} holds no table of compiled kernels of format {FORMAT}; make one: {COMMAND}")


def _modules() -> Iterator[Any]:
    for found in iter_modules([str(Path(__file__).parent)]):
        if found.name != __name__.rpartition(".")[2]:
            yield import_module(f"companion.kernels.{found.name}")


def _disassemble(binary: bytes) -> tuple[dict[str, str], str]:
    """Resource usage and machine code, by the tools that come with triton."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage = _output([str(tools / "cuobjdump"), "-res-usage", file.name])
        code = _output([str(tools / "nvdisasm"), "-c", file.name])
    return dict(re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", usage)), code


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table(rows: Sequence[Compiled]) -> str:
    """Text, one line for each compiled kernel."""
    heads = ("example", "kernel", "target", "warps", "registers", "spilled B", "shared B", "loads", "16-byte")
    lines = [heads, *((r.example, r.kernel, f"sm_{r.target}", *map(str, r[3:])) for r in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    padded = (
        [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in padded)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the kernels for GPUs that are not here.")
    parser.add_argument("--targets", type=int, nargs="+", default=list(TARGETS), help="compute capabilities (sm_*)")
    parser.add_argument("--only", default="", help="examples whose name contains this")
    parser.add_argument("--output", type=Path, help="store the table there, with where it came from")
    given = parser.parse_args()
    rows = compile_all(given.targets, given.only)
    print(table(rows))
    if given.output:
        store(given.output, rows)
    sys.exit(any(row.spilled for row in rows))


if __name__ == "__main__":
    main()
