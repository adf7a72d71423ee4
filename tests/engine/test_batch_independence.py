"""Batch mates, their order and the batch size change no token of a request, greedy or sampled."""

import pytest
import torch
from engine.models import text_target
from engine.tiny import drafter, prompts, tiny

from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.generate import generate

NEW = 18


def texts(target, made, ids, temperature, max_batch, seed=5):
    results = generate(
        target,
        made,
        [list(p) for p in ids],
        temperature=temperature,
        max_new_tokens=NEW,
        max_batch=max_batch,
        seed=seed,
    )
    drafted = sum(row.drafted for result in results for row in result.rounds)
    assert made is None or drafted > 0
    return dict(zip(map(tuple, ids), (tuple(r.tokens) for r in results), strict=True))


@pytest.mark.parametrize(
    ("kind", "temperature"), [("sampled", 0.0), ("sampled", 0.7), ("sampled", 1.0), ("lookup", 0.7)]
)
def test_of_the_shipped_models(kind, temperature):
    """In fp64 strictly: there a uniform number on the very edge of two tokens does not occur."""
    dtype = torch.float64
    target, ids = tiny(dtype), prompts(1)
    alone = {k: v for p in ids for k, v in texts(target, drafter(kind, 4, dtype), [p], temperature, 1).items()}
    assert len(set(alone.values())) == len(alone)
    assert texts(target, drafter(kind, 4, dtype), ids, temperature, 6) == alone
    assert texts(target, drafter(kind, 4, dtype), ids[::-1], temperature, 4) == alone
    mates = [*prompts(2)[6:9], ids[2]]
    assert texts(target, drafter(kind, 4, dtype), mates, temperature, 4)[ids[2]] == alone[ids[2]]
    if temperature:
        assert texts(target, drafter(kind, 4, dtype), ids, temperature, 6, seed=6) != alone


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_in_fp32_but_for_a_draw_on_an_edge(temperature):
    """Rounding moves a probability by a few 1e-6; a text may change only if a uniform number falls in between."""
    target, ids = tiny(), prompts(2)
    together = texts(target, drafter("sampled", 4), ids, temperature, 8)
    changed = sum(texts(target, drafter("sampled", 4), [p], temperature, 1)[p] != together[p] for p in ids)
    assert changed <= 1


@pytest.mark.parametrize("made", [None, "lookup", "draft"])
def test_copies_of_a_prompt_are_independent_responses(made):
    """The n-th copy has its own random numbers, the same in every batch."""
    target = text_target(sharpness=3.0)
    build = {
        None: lambda: None,
        "lookup": lambda: LookupDrafter(target.vocab_size),
        "draft": lambda: ModelDrafter(text_target(1), max_depth=3),
    }[made]
    ids = list(range(40, 50))
    options = {"temperature": 1.0, "max_new_tokens": 12, "stop_token_ids": ()}
    copies = [r.tokens for r in generate(target, build(), [ids] * 4, **options)]
    assert len({tuple(c) for c in copies}) == 4
    mixed = generate(target, build(), [ids, [7, 8], ids, ids], max_batch=2, **options)
    assert [r.tokens for r in mixed[:1] + mixed[2:]] == copies[:3]
