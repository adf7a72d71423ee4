"""One thing changed at a time: the recipes of the ablations, and which pairs of drafters each group compares.

Every recipe differs in one field from DSpark's or DFlash's, `shorter` proposals and the two of them at the edge of a
figure aside, so a later change of the base changes all of them. Groups:

    depth       layers of the drafter; the deepest DFlash stands beside DSpark of every depth (paper, Figure 3)
    gamma       proposal length, DSpark and DFlash, and the RNN head at the longest (Figure 4)
    head        no Markov head, Markov, gated, RNN; all with DSpark's loss, which DFlash is not trained with
    rank        of the Markov head
    anchor      the anchor as first prediction slot, or the anchor and gamma masks behind it
    weight      how the loss weighs positions
    confidence  what the confidence head is told, and along which prefixes
    mix         the domains of the training text
    backbone    Medusa-style heads on one hidden state, without and with a Markov head, beside DSpark
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .corpus import DOMAINS
from .recipe import DrafterConfig

DEPTHS, GAMMAS, RANKS = (1, 2, 3, 5), (3, 7, 11, 15), (8, 32, 128)
CHATTY = {"math": 0.25, "code": 0.25, "chat": 0.5}
Pair = tuple[str, str]


class Ablations:
    """Recipes by name around DSpark and DFlash, and the pairs (first, second) whose accepted lengths are compared.

    The value that the base has already is the base itself, under its own name, and is trained once.
    """

    def __init__(self, dspark: DrafterConfig, dflash: DrafterConfig) -> None:
        self.bases = {"dspark": dspark, "dflash": dflash}
        self.recipes: dict[str, DrafterConfig] = {}
        depths = self._vary("dspark", "layers", DEPTHS, "depth")
        deepest = self._vary("dflash", "layers", [max(DEPTHS)], "dflash-depth")[max(DEPTHS)]
        gammas = self._vary("dspark", "block_size", GAMMAS, "gamma")
        parallel = self._vary("dflash", "block_size", GAMMAS, "dflash-gamma")
        longest = max(GAMMAS)
        rnn = self._add(f"rnn-gamma-{longest}", replace(self._recipe(gammas[longest]), head="rnn"))
        ranks = self._vary("dspark", "rank", RANKS, "rank")
        weights = self._vary("dspark", "position_weight", ("code", "block", "linear", "none"), "weight")
        shares = tuple(CHATTY[domain] for domain in DOMAINS)
        self.groups: dict[str, tuple[Pair, ...]] = {
            "depth": (*self._against_base(depths), *((n, deepest) for n in depths.values())),
            "gamma": (
                *self._against_base(gammas),
                *((gammas[g], parallel[g]) for g in GAMMAS),
                (rnn, gammas[longest]),
            ),
            "head": (
                (self._change("head-none", rank=0), "dspark"),
                (self._change("head-gated", head="gated"), "dspark"),
                ("dspark-rnn", "dspark"),
            ),
            "rank": self._against_base(ranks),
            "anchor": ((self._change("anchor-masks", anchor_predicts=False), "dspark"),),
            "weight": self._against_base(weights),
            "confidence": (
                (self._change("confidence-sampled", confidence_label="sampled"), "dspark"),
                (self._change("confidence-drafted", confidence_prefix="drafted"), "dspark"),
            ),
            "mix": ((self._change("mix-chat", traces=replace(dspark.traces, domain_shares=shares)), "dspark"),),
            "backbone": (("medusa-markov", "medusa"), ("dspark", "medusa-markov")),
        }

    def members(self, group: str) -> list[str]:
        """The drafters of a group, base first. ValueError for an unknown group."""
        if group not in self.groups:
            raise ValueError(f"there is no group {group!r}; there are {', '.join(self.groups)}")
        seconds, firsts = (dict.fromkeys(pair[i] for pair in self.groups[group]) for i in (1, 0))
        return list(seconds | firsts)

    def _recipe(self, name: str) -> DrafterConfig:
        return self.bases.get(name) or self.recipes[name]

    def _add(self, name: str, config: DrafterConfig) -> str:
        self.recipes[name] = config
        return name

    def _change(self, name: str, **field: Any) -> str:
        return self._add(name, replace(self.bases["dspark"], **field))

    def _vary(self, base: str, field: str, values: Iterable[Any], prefix: str) -> dict[Any, str]:
        """Value -> name of the drafter that has it; the base's own value is the base."""
        own = self.bases[base]
        return {
            v: base if getattr(own, field) == v else self._add(f"{prefix}-{v}", replace(own, **{field: v}))
            for v in values
        }

    def _against_base(self, names: dict[Any, str]) -> tuple[Pair, ...]:
        return tuple((name, "dspark") for name in names.values() if name != "dspark")
