"""Results as they lie on disk: plain, or compressed where the name says so."""

import gzip

import pytest
from pydantic import BaseModel

from companion.experiments.stored import read_result
from companion.provenance import stored_text, write_json


class Kept(BaseModel):
    values: list[float]


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_what_was_written_is_read(tmp_path, name):
    kept = Kept(values=[0.1, 1e-300, 3.0])
    write_json(tmp_path / name, kept.model_dump())
    assert read_result(tmp_path / name, Kept, "experiment x") == kept
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_equal_results_are_equal_files(tmp_path):
    """A time stamp inside would make a new file of every run."""
    for name in ("a.json.gz", "b.json.gz"):
        write_json(tmp_path / name, {"values": list(range(9))})
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()).decode() == stored_text(tmp_path / "a.json.gz")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (gzip.compress(mtime=0, data=b'{"values": [1.0, 2.0, 3.0]}')[:-9], "the file is damaged"),
        (b'{"values": []}', "the file is damaged"),
        (gzip.compress(mtime=0, data=b"\xff{}"), "the file is damaged"),
        (gzip.compress(mtime=0, data=b"{}"), "no result of `companion experiment x`"),
    ],
    ids=["cut off", "not compressed", "no text", "something else"],
)
def test_a_damaged_file_gets_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "x.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read_result(path, Kept, "experiment x")


def test_an_absent_file_gets_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*none\.json\.gz: No such file"):
        read_result(tmp_path / "none.json.gz", Kept, "experiment x")
