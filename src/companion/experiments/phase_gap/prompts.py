"""Prompt sets of the protocol: the tiny corpora, a local JSONL, or data sets of the hub; always with their domains.

Both conditions, thinking on and off, are asked the same prompts, and domains are never pooled for H1. The protocol
names math500, gsm8k and mt-bench; tiny-qwen3 has its three held-out domains in their place.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from companion.provenance import prompt_hash
from companion.training.corpus import DOMAINS, held_out_samples

HELD_OUT = "held-out"  # the corpora that tiny-qwen3 was trained on, prompts that it was not
# name in the protocol -> data set of the hub, its configuration, split, and the column with the prompt
PROTOCOL = {
    "math500": ("HuggingFaceH4/MATH-500", None, "test", "problem"),
    "gsm8k": ("openai/gsm8k", "main", "test", "question"),
    "mt-bench": ("HuggingFaceH4/mt_bench_prompts", None, "train", "prompt"),
}
TOPICS = 8  # times as many prompts of one domain are made as are wanted of each topic; those with fewer are left out
COLUMNS = ("prompt", "problem", "question", "instruction")  # looked for in this order in any other data set


@dataclass(frozen=True, slots=True)
class Prompt:
    domain: str
    number: int  # within its domain
    text: str


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of every domain, in order; domains with as many as there are, up to what was asked for."""

    source: str
    prompts: tuple[Prompt, ...]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p.domain for p in self.prompts))

    def of(self, domain: str) -> tuple[Prompt, ...]:
        return tuple(p for p in self.prompts if p.domain == domain)

    @property
    def counts(self) -> dict[str, int]:
        return {domain: len(self.of(domain)) for domain in self.domains}

    @property
    def hash(self) -> str:
        """sha256 over domains and texts in order."""
        return prompt_hash(f"{p.domain}\n{p.text}" for p in self.prompts)


def load_prompts(sources: Sequence[str], per_domain: int, seed: int = 0) -> PromptSet:
    """``per_domain`` prompts of each domain of all ``sources``: "held-out", "held-out/chat" (its topics as domains; or
    those of math or code), a JSONL file, a name of the protocol's (math500, gsm8k, mt-bench), or a data set's id on the
    hub.

    A set has fewer of a domain where it holds fewer. ``seed`` chooses the held-out ones alone: files and data sets are
    taken from their start. ValueError, one sentence, for what cannot be read, for a domain with fewer than two prompts
    and for a prompt that comes twice in one domain.
    """
    if per_domain < 2:
        raise ValueError(f"prompts must be at least 2 for each domain, or there is no interval; got {per_domain}")
    if not sources:
        raise ValueError('there are no prompts: give "held-out", a JSONL file, or a data set of the hub')
    found: dict[str, list[str]] = {}
    for source in sources:
        for domain, text in _read(source, per_domain, seed):
            texts = found.setdefault(domain, [])
            if len(texts) == per_domain:
                continue
            if text in texts:
                raise ValueError(
                    f"domain {domain!r} holds the prompt {_short(text)} twice, and its two responses would count as "
                    "independent; remove one"
                )
            texts.append(text)
    few = [domain for domain, texts in found.items() if len(texts) < 2]
    if few or not found:
        raise ValueError(
            f"{' and '.join(sources)} gave {len(found[few[0]]) if few else 0} prompt(s) of "
            f"{f'domain {few[0]!r}' if few else 'any domain'}; at least 2 of each are needed for an interval"
        )
    chosen = [Prompt(d, i, text) for d, texts in found.items() for i, text in enumerate(texts)]
    return PromptSet(" + ".join(_name(source) for source in sources), tuple(chosen))


def _name(source: str) -> str:
    """A file's name without its folder, which is of this machine alone."""
    return Path(source).name if Path(source).is_file() else source


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def _read(source: str, per_domain: int, seed: int) -> Iterator[tuple[str, str]]:
    if source == HELD_OUT:
        for domain in DOMAINS:
            for sample in held_out_samples(domain, "think", per_domain, seed=seed):
                yield domain, sample.prompt
    elif kind := next((domain for domain in DOMAINS if source == f"{HELD_OUT}/{domain}"), None):
        samples = held_out_samples(kind, "think", TOPICS * per_domain, seed=seed)
        sizes = Counter(sample.family for sample in samples)
        for sample in samples:
            if sizes[sample.family] >= per_domain:
                yield sample.family, sample.prompt
    elif Path(source).exists() or source.endswith((".jsonl", ".json")):
        yield from _read_file(Path(source))
    else:
        yield from _read_hub(source)


def _read_file(path: Path) -> Iterator[tuple[str, str]]:
    """(domain, prompt) of every line of a JSONL file; empty lines are skipped."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"cannot read the prompts in {path}: {reason}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _record(f"{path}, line {number}", line)


def _record(where: str, line: str) -> tuple[str, str]:
    expected = 'a JSON object with "prompt" and "domain", both text, on each line'
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error}); expected {expected}") from error
    for key in ("prompt", "domain"):
        value = record.get(key) if isinstance(record, dict) else None
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{where} has no {key}; expected {expected}")
    return record["domain"], record["prompt"]


def _read_hub(source: str) -> Iterator[tuple[str, str]]:
    """(domain, prompt) of a data set's rows; a set without a column ``domain`` is one domain, by its own name."""
    if source not in PROTOCOL and source.count("/") != 1:
        raise ValueError(
            f'there are no prompts {source!r}: give "held-out", an existing JSONL file, {", ".join(PROTOCOL)}, or a '
            "data set of the hub such as openai/gsm8k"
        )
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ValueError(
            f"{source} is a data set of the hub, and reading it needs the package datasets (pip install datasets); or "
            'give a JSONL file with "prompt" and "domain" on each line'
        ) from error
    name, config, split, column = PROTOCOL.get(source, (source, None, None, None))
    try:
        loaded = load_dataset(name, config, split=split)
    except Exception as error:  # whatever the network, the hub or the set's own files raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"cannot get the data set {name!r} ({reason}); check its name and the network") from error
    rows = _one_split(name, loaded)
    for number, row in enumerate(rows):
        key = column or next((c for c in COLUMNS if c in row), None)
        if key is None or key not in row:
            wanted = column or ", ".join(COLUMNS)
            raise ValueError(f"row {number} of {name} has the columns {', '.join(row)} and none of: {wanted}")
        text = row[key]
        text = text[0] if isinstance(text, list) and text else text  # of a conversation the first turn
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"row {number} of {name} has no text in column {key}; expected a prompt")
        yield source if source in PROTOCOL else str(row.get("domain") or source.rpartition("/")[2]), text


def _one_split(name: str, loaded: Any) -> Iterable[Mapping[str, Any]]:
    """The rows of the test split, or of the only one."""
    if not isinstance(loaded, Mapping):
        rows: Iterable[Mapping[str, Any]] = loaded
        return rows
    split = "test" if "test" in loaded else next(iter(loaded)) if len(loaded) == 1 else None
    if split is None:
        raise ValueError(
            f"{name} has the splits {', '.join(loaded)} and no test split; give its prompts in a JSONL file"
        )
    chosen: Iterable[Mapping[str, Any]] = loaded[split]
    return chosen
