"""The entropy ceiling on real rows, and the five questions that decide what it says.

`collect` makes one long table: a line for each token of the sampled responses and each way of serving it (temperature
and filters), with the entropy and the largest mass of the distribution that verification would use. The five functions
below it answer one question each from that table.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from pydantic import BaseModel

import companion
from companion.acceptance import overlap
from companion.ceiling import entropy, entropy_ceiling, top_m_ceiling
from companion.drafters.model import ModelDrafter
from companion.engine.sampling import distribution
from companion.experiments.responses import response_logits, sample_responses
from companion.planning import CostModel, Planner, plan_depths
from companion.protocols import Sampling
from companion.training.corpus import DOMAINS, MODES, held_out_samples

SERVED = {
    "T=1": Sampling(),
    "T=0.6": Sampling(0.6),
    "T=0.6, top-k 20, top-p 0.95": Sampling(0.6, 20, 0.95),  # what Qwen3's card recommends for thinking
    "T=0": Sampling(0.0),
}
SUPPORTS = (1, 2, 4, 8)


class Config(BaseModel):
    target: str = "tiny-qwen3"
    drafter: str = "draft"
    device: str = "cpu"
    prompts: int = 4  # per domain and mode
    max_new_tokens: int = 400
    seed: int = 0


def collect(config: Config) -> pd.DataFrame:
    """Columns: response, domain, mode, phase, step, served; entropy (nats), max_p and kept of p_t; of the draft model's
    p_d, served alike: overlap (a sampled proposal's c*) and agreement (its argmax's c*); top_m, the largest mass of m
    tokens. Texts are sampled at temperature 1; ``served`` changes how their rows would be verified."""
    target = companion.load_target(config.target, device=config.device)
    drafter = companion.load_drafter(config.drafter, target)
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(f"this experiment needs a draft model, and drafter {config.drafter!r} is none")
    frames = []
    responses = sample_responses(target, prompts=config.prompts, seed=config.seed, max_new_tokens=config.max_new_tokens)
    for number, response in enumerate(responses):
        target_logits, draft_logits = response_logits(target, response), response_logits(drafter.model, response)
        for served, sampling in SERVED.items():
            p_t, p_d = distribution(target_logits, sampling), distribution(draft_logits, sampling)
            largest = p_t.topk(max(SUPPORTS), -1).values.cumsum(-1).numpy()
            best = p_d.argmax(-1, keepdim=True)
            frames.append(
                pd.DataFrame(
                    {
                        "response": number,
                        "domain": response.domain,
                        "mode": response.mode,
                        "phase": response.result.phases,
                        "step": np.arange(len(p_t)),
                        "served": served,
                        "vocab": target.usable_vocab,
                        "entropy": entropy(p_t).numpy(),
                        "max_p": largest[:, 0],
                        "kept": (p_t > 0).sum(-1).numpy(),
                        "overlap": overlap(p_t, p_d).numpy(),
                        "agreement": p_t.gather(-1, best)[:, 0].numpy(),
                        **{f"top_{m}": largest[:, m - 1] for m in SUPPORTS},
                    }
                )
            )
    rows = pd.concat(frames, ignore_index=True)
    rows["ceiling"] = entropy_ceiling(rows["entropy"].to_numpy(), rows["vocab"].to_numpy())
    rows["ceiling_kept"] = entropy_ceiling(rows["entropy"].to_numpy(), rows["kept"].to_numpy())
    return rows


def judged_slots(config: Config, *, max_depth: int = 4) -> pd.DataFrame:
    """A deterministic drafter at work: each slot of the prompt-lookup drafter that the target judged, at temperature 1,
    with the entropy and the ceiling of its row and whether the token was accepted."""
    target = companion.load_target(config.target, device=config.device)
    drafter = companion.load_drafter("lookup", target, max_depth=max_depth)
    records = []
    for mode in MODES:
        prompts = [s.prompt for d in DOMAINS for s in held_out_samples(d, mode, config.prompts, seed=config.seed)]
        results = companion.generate(
            target,
            drafter,
            prompts,
            max_new_tokens=config.max_new_tokens,
            temperature=1.0,
            seed=config.seed,
            thinking=mode == "think",
        )
        for row in (row for result in results for row in result.rounds):
            for slot in range(row.accepted + row.rejected):
                records.append((row.served_entropy[slot], row.served_max_p[slot], slot < row.accepted))
    slots = pd.DataFrame(records, columns=["entropy", "max_p", "accepted"])
    slots["ceiling"] = entropy_ceiling(slots["entropy"].to_numpy(), target.usable_vocab)
    return slots


def which_distribution(rows: pd.DataFrame) -> pd.DataFrame:
    """Question 1, which p_t: means by way of serving. At temperature 0 the ceiling is 1 and acceptance is agreement."""
    grouped = rows.groupby("served", sort=False)
    return grouped[["entropy", "max_p", "ceiling", "agreement"]].mean()


def which_vocabulary(rows: pd.DataFrame, served: str = "T=0.6, top-k 20, top-p 0.95") -> pd.DataFrame:
    """Question 2, which V: the mean ceiling with the whole vocabulary and with the kept set, on rows that keep two
    tokens or more (with one there is nothing to bound), beside the largest mass that both bound."""
    open_rows = rows[(rows["served"] == served) & (rows["kept"] > 1)]
    if open_rows.empty:
        raise ValueError(f"no row served as {served!r} keeps more than one token; sample more responses")
    grouped = open_rows.groupby("domain", sort=False)
    return grouped[["kept", "entropy", "ceiling", "ceiling_kept", "max_p"]].mean().assign(rows=grouped.size())


def which_drafter(rows: pd.DataFrame) -> pd.DataFrame:
    """Question 3, which drafter: for m = 1, 2, 4, 8 the mean bound P*_m and the mean top-m mass that it bounds, on rows
    at temperature 1, and on how many rows the mass exceeds the bound (none, or the theorem is wrong)."""
    plain = rows[rows["served"] == "T=1"]
    h, v = plain["entropy"].to_numpy(), plain["vocab"].to_numpy()
    return pd.DataFrame(
        {
            "bound": [float(top_m_ceiling(h, v, m).mean()) for m in SUPPORTS],
            "top_mass": [float(plain[f"top_{m}"].mean()) for m in SUPPORTS],
            "broken": [int((plain[f"top_{m}"] > top_m_ceiling(h - 1e-14, v, m) + 1e-9).sum()) for m in SUPPORTS],
        },
        index=pd.Index(SUPPORTS, name="m"),
    )


def which_step(rows: pd.DataFrame, served: str = "T=1") -> dict[str, float]:
    """Question 4, which step: the newest row known at drafting time is the one before. How good is it as a forecast?

    ``autocorrelation`` of H at lag 1 within responses; ``broken``, how often the true largest mass exceeds the ceiling
    of the row before, and ``broken_by_tenth``, by more than 0.1; ``broken_own``, the same with the row's own ceiling
    (never, or the theorem is wrong). ``cut``, how often the i.i.d. planner answers less than full depth for the ceiling
    of the row before, and ``unfounded``, in how many of these it would have kept full depth for the true largest mass.
    """
    ordered = rows[rows["served"] == served].sort_values(["response", "step"])
    previous = ordered.groupby("response")[["entropy", "ceiling"]].shift(1)
    known = previous["entropy"].notna()
    pairs = ordered[known]
    if len(pairs) < 2:
        raise ValueError("a forecast needs two rows of one response; sample longer responses")
    before = previous.loc[known, "ceiling"]
    cut = plan_depths(before) < 7
    kept = plan_depths(pairs["max_p"]) == 7
    return {
        "pairs": float(len(pairs)),
        "autocorrelation": float(np.corrcoef(pairs["entropy"], previous.loc[known, "entropy"])[0, 1]),
        "broken": float((pairs["max_p"] > before + 1e-9).mean()),
        "broken_by_tenth": float((pairs["max_p"] > before + 0.1).mean()),
        "broken_own": float((pairs["max_p"] > pairs["ceiling"] + 1e-9).mean()),
        "cut": float(cut.mean()),
        "unfounded": float((cut & kept).sum() / cut.sum()) if cut.any() else float("nan"),
    }


def what_is_certified(rows: pd.DataFrame, cost: CostModel | None = None, served: str = "T=1") -> pd.DataFrame:
    """Question 5, what is certified: the share of rows for which each planner answers each depth from 1 to 7."""
    ceiling = rows.loc[rows["served"] == served, "ceiling"].to_numpy()
    planners: tuple[Planner, ...] = ("iid", "certified")
    shares = {
        planner: np.bincount(plan_depths(ceiling, cost, planner=planner), minlength=8)[1:] / len(ceiling)
        for planner in planners
    }
    return pd.DataFrame(shares, index=pd.Index(range(1, 8), name="depth"))
