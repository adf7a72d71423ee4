"""What is true of the weights that ship with the book and need not be true of others.

Mathematics holds on every model, and a notebook asserts it plainly. That a draft model agrees with its target more than
three times in ten, or that some response closed its span, is a fact about two sets of weights. Such a statement goes
through `expectations`: on the shipped weights it is an assertion like any other, on other weights the page says whether
it holds there too.
"""

from __future__ import annotations

from typing import Protocol

from companion.provenance import file_hash

TARGET, DRAFT = "tiny-qwen3", "tiny-qwen3-draft"


class Expect(Protocol):
    def __call__(self, holds: object, statement: str) -> None:
        """AssertionError on the shipped weights unless ``holds``; on others, one printed line."""


def expectations(target: str, drafter: str = "draft") -> Expect:
    """How a notebook states what it knows of tiny-qwen3, and of its draft model, only.

    The arguments are the names that `load_target` and `load_drafter` take. A model counts as the shipped one when its
    weight files are, under whatever name or folder. Raises ValueError for a name that stands for no model.
    """
    shipped = _same_weights(target, TARGET) and _same_weights(DRAFT if drafter == "draft" else drafter, DRAFT)

    def expect(holds: object, statement: str) -> None:
        if shipped and not holds:
            raise AssertionError(f"expected of the shipped weights: {statement}")
        if not shipped:
            print(f"[stated of tiny-qwen3: {statement}; on these weights: {'yes' if holds else 'no'}]")

    return expect


def _same_weights(name: str, shipped: str) -> bool:
    """Whether two names stand for the same bytes; sizes are compared first, since a large model is slow to hash."""
    from companion.engine.load import find_model

    if name == shipped:
        return True
    files, others = find_model(name).weight_files(), find_model(shipped).weight_files()
    if [path.stat().st_size for path in files] != [path.stat().st_size for path in others]:
        return False
    return [file_hash(path) for path in files] == [file_hash(path) for path in others]
