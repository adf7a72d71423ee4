"""What a round's target rows say: how many drafts each request keeps, the token that follows, and the rows' statistics.

On a GPU, and under Triton's interpreter, the row kernels do it; elsewhere their references in PyTorch, with the same
random numbers. A case that the kernels do not hold (fp64, or draws that are not the engine's own) goes to the
references on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from companion.engine import sampling as rows
from companion.engine.draws import KeyedDraws
from companion.engine.transfer import download, upload
from companion.engine.verify import check_proposal, verify_block, verify_greedy
from companion.kernels.batch import Batch, Drafts
from companion.kernels.launch import FLOATS, runs_here
from companion.kernels.probe import moments, probe
from companion.kernels.verify import verify
from companion.protocols import Context, Draft


class RowStatistics(NamedTuple):
    """The per-row columns of the Rounds table, for every row of one forward."""

    entropy: list[float]
    max_p: list[float]
    think_end_mass: list[float]
    served_entropy: list[float]
    served_max_p: list[float]

    @classmethod
    def of(cls, logits: Tensor, served: Tensor | None, close: Sequence[int]) -> RowStatistics:  # [M, V]
        """Of the temperature-1 distribution and of the one served; what a greedy request serves is one-hot."""
        entropy, max_p, mass = (column.tolist() for column in moments(logits, close))
        if served is None:
            return cls(entropy, max_p, mass, [0.0] * len(logits), [1.0] * len(logits))
        served_entropy, served_max_p, _ = (column.tolist() for column in moments(served.log()))
        return cls(entropy, max_p, mass, served_entropy, served_max_p)

    def of_rows(self, span: slice) -> dict[str, Any]:
        return {name: column[span] for name, column in self._asdict().items()}


class Verdict(NamedTuple):
    accepted: int  # drafts that are kept
    token: int  # the target's own, which follows them


def judge(
    contexts: Sequence[Context],
    drafts: Sequence[Draft],
    lengths: Sequence[int],  # admitted tokens of each draft
    logits: Tensor,  # [sum(lengths) + R, V]
    close: Sequence[int],  # think-end tokens
    depth: int,  # the most that a draft may be long
) -> tuple[list[Verdict], RowStatistics]:
    """The rule applied to each request. ValueError on logits or draft probabilities that are no distribution."""
    spans = [slice(start, end) for start, end in pairwise([0, *accumulate(n + 1 for n in lengths)])]
    admitted = [Draft(draft.tokens[:n], draft.probs if n else None) for draft, n in zip(drafts, lengths, strict=True)]
    if runs_here(logits) and _held(contexts, admitted, logits):
        return _by_kernels(contexts, admitted, spans, logits, close, depth)
    best = rows.greedy(logits).tolist() if any(c.sampling.greedy for c in contexts) else []
    served = _served(contexts, spans, logits)
    statistics = RowStatistics.of(logits, served, close)
    verdicts = []
    for context, draft, span in zip(contexts, admitted, spans, strict=True):
        if context.sampling.greedy:
            found = verify_greedy(draft.tokens, best[span])
        else:
            assert served is not None
            found = verify_block(draft.tokens, draft.probs, served[span], context.draws, len(context.tokens))
        verdicts.append(Verdict(*found))
    return verdicts, statistics


def _served(
    contexts: Sequence[Context],
    spans: Sequence[slice],
    logits: Tensor,  # [M, V]
    *,
    checked: bool = False,  # as in `distribution`
) -> Tensor | None:  # [M, V]
    """The verifying distribution of every row, each request's own sampling applied; None when all are greedy."""
    samplings = {c.sampling for c in contexts}
    if len(samplings) == 1:
        only = samplings.pop()
        return None if only.greedy else rows.distribution(logits, only, checked=checked)
    pairs = zip(contexts, spans, strict=True)
    return torch.cat([rows.distribution(logits[span], c.sampling, checked=checked) for c, span in pairs])


def _held(contexts: Sequence[Context], drafts: Sequence[Draft], logits: Tensor) -> bool:
    """Whether the kernels hold this round."""
    return logits.dtype in FLOATS and all(
        context.sampling.greedy
        or (type(context.draws) is KeyedDraws and (draft.probs is None or draft.probs.dtype != torch.float64))
        for context, draft in zip(contexts, drafts, strict=True)
    )


def _by_kernels(
    contexts: Sequence[Context],
    drafts: Sequence[Draft],
    spans: Sequence[slice],
    logits: Tensor,
    close: Sequence[int],
    depth: int,
) -> tuple[list[Verdict], RowStatistics]:
    """Probe the rows and verify the drafts on the device. The host waits for it once, in `download`."""
    device, sampled = logits.device, [not c.sampling.greedy for c in contexts]
    plain = probe(logits, upload(close, device))
    warm = [c.sampling.temperature for c in contexts]
    judged = logits
    if any(c.sampling.top_k or c.sampling.top_p < 1.0 or c.sampling.min_p > 0.0 for c in contexts):
        served = _served(contexts, spans, logits, checked=True)  # filters sort a row, which no kernel of ours does
        assert served is not None
        judged, warm = served.log(), [float(own) for own in sampled]
    heat = [t for t, span in zip(warm, spans, strict=True) for _ in range(span.start, span.stop)]
    seen: Sequence[Tensor] = plain  # at temperature 1 both are one; what a greedy request serves is one-hot
    if set(heat) == {0.0}:
        seen = torch.zeros_like(plain.entropy), torch.ones_like(plain.max_p)
    elif judged is not logits or set(heat) != {1.0}:
        seen = probe(judged, temperature=upload(heat, device, torch.float32))
    words = [_words(c) for c in contexts]
    batch = Batch(
        drafted=upload([t for d in drafts for t in (*d.tokens, -1)], device),
        starts=upload([0, *(span.stop for span in spans)], device),
        positions=upload([len(c.tokens) for c in contexts], device),
        keys=upload(words, device),
        temperature=upload(warm, device, torch.float32),
    )
    found = verify(judged, batch, _laws(drafts, sampled, logits), depth=depth)
    all_tokens, counts, log_sum, *columns = download(found.tokens, found.counts, plain.log_sum, *plain[:3], *seen[:2])
    rows.check_finite(log_sum)
    statistics = RowStatistics(*columns)
    verdicts = []
    for i, (tokens, count) in enumerate(zip(all_tokens, counts, strict=True)):
        if count > 0:
            verdicts.append(Verdict(count - 1, tokens[count - 1]))
            continue
        own = rows.distribution(logits[spans[i]], contexts[i].sampling)  # says what is wrong with it
        context = contexts[i]
        verdicts.append(
            Verdict(*verify_block(drafts[i].tokens, drafts[i].probs, own, context.draws, len(context.tokens)))
        )
    return verdicts, statistics


def _words(context: Context) -> list[int]:
    """A request's key as signed integers; a greedy one with draws of another kind never uses its own."""
    return context.draws.words.view("int64").tolist() if isinstance(context.draws, KeyedDraws) else [0, 0]


def _laws(drafts: Sequence[Draft], sampled: Sequence[bool], logits: Tensor) -> Drafts | None:  # [M, V]
    """The distributions of all sampled drafts in one tensor, and where each row finds its own; None without any."""
    laws: list[Tensor] = []
    places: list[int] = []
    held = 0
    for draft, own in zip(drafts, sampled, strict=True):
        n = len(draft)
        if own and draft.probs is not None:
            check_proposal(draft.probs, n, logits.shape[-1])
            laws.append(draft.probs[:n].to(logits.device))
            places.extend((*range(held, held + n), -1))
            held += n
        else:
            places.extend([-1] * (n + 1))
    return Drafts(torch.cat(laws), upload(places, logits.device)) if laws else None
