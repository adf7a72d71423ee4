"""A recording of Phase 1 on disk: bare rounds in a byte or so each, and beside them confidences in a byte a slot.

Left out: token ids, entropies, timings. What is compared must come from one target, one prompt set and one cap, and
from untrimmed drafts: a policy that trims never sees what the rest of the block would have done (a censored
observation).

What `companion experiment drafter-rounds` recorded of every trained drafter, with thinking on and off, is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from companion.compact import (
    load_compact,
    load_provenance,
    read_columns,
    save_compact,
    whole,
    write_columns,
)
from companion.experiments.phase_gap.design import training_of
from companion.metrics import by_prompt
from companion.rounds import Rounds, comparable

CONFIDENCE = "companion.confidence/1"
STEPS = 200  # of a stored confidence, from 0 to 1; a bin of a reliability diagram holds ten of them
COMMAND = "companion experiment phase-gap"


def save_arm(rounds: Rounds, path: Path, *, confidence: bool) -> None:
    """The confidences first, so that the rounds' file says that both are whole.

    ValueError when a round of a response is missing, or when the drafts were trimmed.
    """
    check_untrimmed(path, rounds)
    rows = list(chain.from_iterable(by_prompt(rounds).values()))  # as `save_compact` has them
    if confidence and any(r.confidence for r in rows):
        values = (round(STEPS * c) for r in rows for c in r.confidence or ())
        slots = (len(r.confidence or ()) for r in rows)
        columns = {"slots": whole("slots", slots, np.uint8), "confidence": whole("confidence", values, np.uint8)}
        header = {"format": CONFIDENCE, "provenance": rounds.provenance}
        write_columns(confidence_path(path), header, columns)
    else:
        confidence_path(path).unlink(missing_ok=True)
    bare = (replace(r, entropy=[], confidence=None, batch=1) for r in rows)
    save_compact(Rounds(bare, rounds.provenance), path)


def confidence_path(path: Path) -> Path:
    return path.with_suffix(".confidence")


def load_arm(path: Path) -> Rounds:
    """The rounds, with their confidences where these were kept. ValueError for a broken or foreign file.

    A response that misses a round, and a confidence file of another recording, are refused.
    """
    table = _described(load_compact(path))
    _check_whole(path, table)
    check_untrimmed(path, table)
    beside = confidence_path(path)
    if not beside.exists():
        return table
    header, columns = read_columns(beside, CONFIDENCE)
    counts, values = columns["slots"].tolist(), (columns["confidence"] / STEPS).tolist()
    fits = sum(counts) == len(values) and all(n in (0, r.drafted) for n, r in zip(counts, table, strict=False))
    if header["provenance"] != table.provenance or len(counts) != len(table) or not fits:
        raise ValueError(f"{beside} is not of the recording in {path.name}; remove both and record again")
    ends = np.cumsum([0, *counts]).tolist()
    parts = zip(table, pairwise(ends), strict=True)
    rows = [replace(r, confidence=values[a:b]) if b > a else r for r, (a, b) in parts]
    return Rounds(rows, table.provenance)


def _described(table: Rounds) -> Rounds:
    """The table of `drafter-rounds` with what its recipe and its rows say beside it, under this module's names; any
    other as it is. It has no policy, so that it is untrimmed, which `load_arm` checks."""
    known = table.provenance or {}
    if "recipe" not in known.get("settings", {}):
        return table
    own = known["settings"]
    prompts = dict.fromkeys((str(r.domain) for r in table), own["prompts"])
    settings = {"prompts": prompts, "depth": known["depth"], "untrimmed": True, **training_of(own["recipe"])}
    return Rounds(table, known | {"settings": own | settings})


def load_arms(folder: Path) -> list[Rounds]:
    """Every finished recording in ``folder``; ValueError when there is none, or when they cannot be compared."""
    paths = [path for path in finished(folder) if not _is_plain(load_provenance(path))]
    if not paths:
        raise ValueError(f"{folder} holds no finished recording; `{COMMAND}` writes them")
    tables = [load_arm(path) for path in paths]
    check_comparable(folder, [table.provenance or {} for table in tables])
    return tables


def _is_plain(provenance: Mapping[str, Any]) -> bool:
    """Whether it is of decoding without a drafter, which has no acceptance."""
    return "drafter" in provenance and provenance["drafter"] is None


def finished(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def check_comparable(folder: Path, known: Sequence[Mapping[str, Any]]) -> None:
    """ValueError unless all recordings are of one target, prompt set, cap, and of untrimmed drafts, none twice."""
    if bare := [p for p in known if not p or "settings" not in p or "untrimmed" not in p["settings"]]:
        raise ValueError(
            f"{len(bare)} of the {len(known)} files in {folder} do not say whether their drafts were untrimmed; only "
            f"recordings of `{COMMAND}` do"
        )
    for what, of in (("target", "weights_sha256"), ("target", "dtype"), ("settings", "max_new_tokens")):
        if any(p[what][of] != known[0][what][of] for p in known):
            raise ValueError(f"the recordings in {folder} differ in {what} ({of}); one verdict cannot speak for both")
    if any(p["prompt_set"] != known[0]["prompt_set"] for p in known):
        raise ValueError(f"the recordings in {folder} are of different prompts; give each prompt set its own folder")
    if not all(p["settings"]["untrimmed"] for p in known):
        raise ValueError(f"{folder} holds recordings of trimmed drafts, which are censored and calibrate nothing")
    seen: dict[str, str] = {}
    for p in known:
        key = json.dumps([p["sampling"], p["seeds"], p["drafter"]["weights_sha256"]], sort_keys=True)
        if key in seen:
            raise ValueError(
                f"{p['drafter']['name']} and {seen[key]} have the same weights and the same draws; keep one of them"
            )
        seen[key] = p["drafter"]["name"]


def check_same(path: Path, stored: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """ValueError when ``path``, whose provenance is ``stored``, is not the run that ``ours`` describes."""
    there, here = comparable(stored), comparable(json.loads(json.dumps(ours)))
    if changed := sorted(key for key in here if there.get(key) != here[key]):
        raise ValueError(
            f"{path} is of another run ({', '.join(changed)} differ); give another folder, or remove the file"
        )


def check_untrimmed(path: Path, rounds: Rounds) -> None:
    """ValueError when a policy verified less than was drafted."""
    if trimmed := sum(r.verified < r.drafted for r in rounds):
        raise ValueError(
            f"{path}: {trimmed} of {len(rounds)} rounds verified fewer tokens than were drafted; a trimmed run is "
            "censored, so record again without a policy"
        )


def _check_whole(path: Path, rounds: Rounds) -> None:
    if open_ended := sum(not rows[-1].ended for rows in by_prompt(rounds).values()):
        raise ValueError(f"{path}: {open_ended} responses have no end; record again into another folder")
