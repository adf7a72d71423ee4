"""Row statistics from batches as vLLM's sampler sees them: the right rows, of the right requests and rounds."""

import json
import sys
import types
from types import SimpleNamespace

import pytest
import torch

from companion.kernels.probe import probe_reference
from companion.phase.tracker import ThinkTokens
from companion.rounds import Round
from companion.serving.vllm.options import Options
from companion.serving.vllm.row_file import RowFile, read_rows, with_rows

CLOSE, V = 2, 50


def batch(*requests, seed=0):
    """Logits, slots and positions of [(slot, position of the anchor, drafts)]."""
    slots = [slot for slot, _, drafts in requests for _ in range(drafts + 1)]
    positions = [at + k for _, at, drafts in requests for k in range(drafts + 1)]
    logits = torch.randn(len(slots), V, generator=torch.Generator().manual_seed(seed)) * 3
    return logits, torch.tensor(slots), torch.tensor(positions)


def row(position, verified, name="a"):
    return Round(0, 1, position, verified, verified, 0, verified > 0, True, [9], ["think"], prompt_id=name)


def test_rows_find_their_rounds(tmp_path):
    path = tmp_path / "rows.jsonl"
    file = RowFile(path, CLOSE)
    assert file.follow(4, "a")
    assert file.follow(0, "b")
    assert not file.follow(7, None)  # somebody else's request
    first = batch((7, 30, 2), (4, 10, 3), (0, 20, 1))
    second = batch((4, 12, 3), seed=1)  # one accepted: positions 11 and 12 of the first step are over
    file.record(*first)
    file.record(*second)
    rows = read_rows(path)
    assert set(rows) == {("a", 11), ("b", 21), ("a", 13)}
    found = with_rows([row(11, 3), row(13, 3), row(21, 1, "b")], rows)
    for one, logits in ((found[0], first[0][3:7]), (found[1], second[0]), (found[2], first[0][7:9])):
        alone = probe_reference(logits, [CLOSE])
        assert one.entropy == pytest.approx(alone.entropy.tolist())
        assert one.max_p == pytest.approx(alone.max_p.tolist())
        assert one.think_end_mass == pytest.approx(alone.mass.tolist())


def test_a_slot_changes_hands(tmp_path):
    file = RowFile(tmp_path / "rows.jsonl", None)
    file.follow(4, "a")
    file.record(*batch((4, 10, 0)))
    file.follow(4, None)
    file.record(*batch((4, 50, 0)))
    file.follow(4, "b")
    file.record(*batch((4, 20, 0)))
    rows = read_rows(tmp_path / "rows.jsonl")
    assert set(rows) == {("a", 11), ("b", 21)}
    assert rows["a", 11]["think_end_mass"] == [0.0]  # the model has no closing tag


def test_rows_of_another_run_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    file = RowFile(path, CLOSE)
    file.follow(4, "a")
    file.record(*batch((4, 10, 3)))
    rows = read_rows(path)
    with pytest.raises(ValueError, match="and none were written"):
        with_rows([row(12, 3)], rows)
    with pytest.raises(ValueError, match="so it has 3 rows, and 4 were written"):
        with_rows([row(11, 2)], rows)
    (tmp_path / "other").write_text(json.dumps({"format": "x"}) + "\n", encoding="utf-8")
    for name, said in (("other", "must name the format"), ("missing", "cannot read")):
        with pytest.raises(ValueError, match=said):
            read_rows(tmp_path / name)


@pytest.fixture
def probe(monkeypatch):
    """Our processor over a stand-in of vLLM's base class."""
    parts = ["vllm", "v1", "worker", "gpu", "sample", "logits_processor", "interface"]
    for i in range(1, len(parts) + 1):
        module = types.ModuleType(".".join(parts[:i]))
        module.LogitsProcessor = object
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "companion.serving.vllm_probe", raising=False)
    from companion.serving.vllm_probe import RowProbe

    yield RowProbe
    del sys.modules["companion.serving.vllm_probe"]


def test_the_processor_reads_and_changes_nothing(probe, tmp_path):
    path = tmp_path / "rows.jsonl"
    options = Options(ThinkTokens(1, CLOSE), probe=path).to_dict()
    config = SimpleNamespace(additional_config=options, parallel_config=SimpleNamespace(rank=0))
    processor = probe(config, None)
    assert processor.add_request(4, SimpleNamespace(extra_args={"companion_request": "a"}))
    assert not processor.add_request(5, SimpleNamespace(extra_args=None))
    logits, slots, positions = batch((5, 30, 1), (4, 10, 3))
    before = logits.clone()
    context = SimpleNamespace(expanded_idx_mapping=slots, pos=positions, expanded_local_pos=None)
    assert processor.apply(logits, context) is logits
    assert torch.equal(logits, before)
    assert set(read_rows(path)) == {("a", 11)}
    config.parallel_config.rank = 1
    second = probe(config, None)
    assert not second.add_request(4, SimpleNamespace(extra_args={"companion_request": "a"}))
    assert set(read_rows(path)) == {("a", 11)}  # the first worker's file is not begun anew
    config.additional_config = Options(ThinkTokens(1, CLOSE)).to_dict()
    with pytest.raises(ValueError, match="names no file"):
        probe(config, None)
