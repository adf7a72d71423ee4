"""Every kernel compiles for GPUs that are not here, without spills, within their shared memory, with wide loads."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from companion.kernels import ahead
from companion.kernels.launch import Launch, recording
from companion.kernels.probe import probe

# kernels whose whole work is to read rows: by 16 bytes, or they are slow
WIDE = {"row_parts", "overlap", "masses", "correct", "attend"}
STORED = Path(__file__).parents[2] / "data" / "results" / "kernels_compiled.json"  # what the book shows
Table = dict[tuple[str, str, int], list[int]]


def compiled(*options: str) -> Table:
    """What the command prints: (example, kernel, target) -> the numbers of that line."""
    command = [sys.executable, "-m", "companion.kernels.ahead", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    heads, *lines = ran.stdout.splitlines()
    assert heads.split()[-8:] == ["warps", "registers", "spilled", "B", "shared", "B", "loads", "16-byte"]
    found = {}
    for line in lines:
        *example, kernel, target = line.split()[:-6]
        found[" ".join(example), kernel, int(target.removeprefix("sm_"))] = [int(n) for n in line.split()[-6:]]
    return found


def stored(targets: set[int], named: str) -> Table:
    """The same of the stored table."""
    rows = [row for row in ahead.load(STORED) if row.target in targets and named in row.example]
    return {(row.example, row.kernel, row.target): list(row[3:]) for row in rows}


def same(found: Table, kept: Table) -> bool:
    """Another compiler gives other numbers, for the same kernels."""
    of = json.loads(STORED.read_text(encoding="utf-8"))["provenance"]["system"]["triton"]
    return found == kept if of == version("triton") else found.keys() == kept.keys()


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (90, ""),
        (80, "bf16"),
        (100, "bf16"),
        pytest.param(80, "", marks=pytest.mark.full),
        pytest.param(100, "", marks=pytest.mark.full),
    ],
)
def test_nothing_spills_all_fits_and_rows_are_read_16_bytes_at_a_time(target: int, named: str) -> None:
    """All kernels for Hopper on every run; for the other two a sample, and all of them with --full."""
    table = compiled("--targets", str(target), "--only", named)
    kernels = {"row_parts", "probe", "overlap"} if named else {"accept", "masses", "place", "correct", "pick", "attend"}
    assert {kernel for _, kernel, _ in table} >= kernels
    for key, (warps, registers, spilled, shared, loads, wide) in table.items():
        assert key[2] == target
        assert spilled == 0, key
        assert 0 < registers * warps * 32 <= 65536, key
        assert shared <= ahead.SHARED_LIMIT[target], key
        if key[1] in WIDE:
            assert 3 * wide >= loads > 0, key
    assert same(table, stored({target}, named))


def test_the_stored_table_is_of_these_kernels_and_of_all_of_them() -> None:
    """Compiled again are two, for each target; the test above does it with all."""
    assert same(compiled("--only", "probe fp32"), stored(set(ahead.TARGETS), "probe fp32"))
    launched = {
        (name, launch.kernel.__name__.strip("_"), target)
        for name, launches in ahead.examples().items()
        for launch in launches
        for target in ahead.TARGETS
    }
    assert launched == stored(set(ahead.TARGETS), "").keys()


def test_a_table_is_read_as_it_was_stored_and_what_is_none_is_refused(tmp_path: Path) -> None:
    rows = [ahead.Compiled("probe", "row_parts", target, 8, 77, 0, 64, 9, 8) for target in ahead.TARGETS]
    ahead.store(tmp_path / "kept.json", rows)
    assert ahead.load(tmp_path / "kept.json") == rows
    for text in ("", "{}", '{"format": "other"}', '{"format": "companion.kernels/1", "kernels": [{"warps": 1}]}'):
        (tmp_path / "none.json").write_text(text)
        with pytest.raises(ValueError, match="holds no table of compiled kernels"):
            ahead.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="holds no table of compiled kernels"):
        ahead.load(tmp_path / "absent.json")


def test_a_row_that_is_not_aligned_is_not_read_wide() -> None:
    """The control: the count is of the machine code, not of what was hoped for."""
    code = (
        "import torch; from companion.kernels import ahead, probe, launch\n"
        "with launch.recording() as made: probe.probe(torch.empty(4, 151_937, device='meta'))\n"
        "print(ahead.compile_launch('odd', made[0], 90).wide)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "0"
    )


def test_arguments_are_specialised_as_at_a_launch() -> None:
    with recording() as made:
        probe(torch.empty(3, 2, 32, device="meta")[:, 1])
    signature, constants, attributes = ahead.specialise(made[0])
    names = list(made[0].arguments)
    assert signature["logits"] == "*fp32"
    assert signature["stride"] == "i32"
    assert signature["BLOCK"] == "constexpr"
    assert constants[(names.index("BLOCK"),)] == 32
    divisible = {names[i] for (i,) in attributes}
    assert {"logits", "stride", "width"} <= divisible
    odd = Launch(made[0].kernel, (1,), {"logits": 1, "stride": 7, "width": 2**40, "peak": 0.5, "total": None}, {})
    signature, constants, attributes = ahead.specialise(odd)
    assert signature == {"logits": "constexpr", "stride": "i32", "width": "i64", "peak": "fp32", "total": "constexpr"}
    assert constants == {(0,): 1, (4,): None}
    assert list(attributes) == [(2,)]


def test_every_example_launches() -> None:
    for name, launches in ahead.examples().items():
        assert launches, name


@pytest.mark.interpreter
def test_under_the_interpreter_there_is_nothing_to_compile() -> None:
    (launches, *_) = ahead.examples().values()
    with pytest.raises(ValueError, match="TRITON_INTERPRET is set"):
        ahead.compile_launch("any", launches[0], 90)
