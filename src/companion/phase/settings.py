"""The hook's TOML file, with the note's keys: no acceptance rate in it without the run that it was measured in.

    [speculation]                    what the hook may do; every key has a default
    [speculation.acceptance_prior]   rates with their run; absent until somebody has measured

In the second table everything is required, unknown keys and blanks are refused, and so is a run that was trimmed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from companion.phase.origin import Measured
from companion.phase.rates import Definition, MeasuredRates, PhaseRate
from companion.planning import CostModel
from companion.protocols import Sampling
from companion.resampling import Interval

_COSTS = ("draft_token_us", "verify_fixed_us", "verify_token_us")
_RATES = ("think", "output", "think_interval", "output_interval")
_CURVES = ("think_curve", "output_curve")
_RUN = {  # key of the file: field of the origin; the first two and thinking_mode are the note's names
    "draft_checkpoint": "drafter",
    "target_model": "target",
    "thinking_mode": "thinking",
    "draft_revision": "drafter_revision",
    "target_revision": "target_revision",
    **{name: name for name in ("harness", "recorded_on", "seeds", "prompt_set", "hardware", "depth", "untrimmed")},
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The note's configuration and its defaults; ``rates`` None leaves the hook uncalibrated."""

    enabled: bool = False
    baseline_proposal_len: int = 7
    min_proposal_len: int = 1
    max_proposal_len: int = 7
    vocab_size: int = 151_936
    use_entropy_ceiling: bool = True
    cost: CostModel = field(default_factory=CostModel)
    rates: MeasuredRates | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_proposal_len <= self.baseline_proposal_len <= self.max_proposal_len:
            raise ValueError(
                f"expected 0 <= min_proposal_len <= baseline_proposal_len <= max_proposal_len, got "
                f"{self.min_proposal_len}, {self.baseline_proposal_len} and {self.max_proposal_len}"
            )
        if self.vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2, got {self.vocab_size}")


def read_settings(path: Path) -> Settings:
    """The file's settings. ValueError says what is wrong in it and where."""
    try:
        return parse_settings(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_settings(text: str) -> Settings:
    """Settings from TOML text; other tables are somebody else's and are left alone."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"this is not TOML: {error}") from error
    table = _table(document.get("speculation", {}), "[speculation]")
    kinds: dict[str, type] = {"enabled": bool, "use_entropy_ceiling": bool}
    kinds |= dict.fromkeys(("baseline_proposal_len", "min_proposal_len", "max_proposal_len", "vocab_size"), int)
    kinds |= dict.fromkeys(_COSTS, float)
    _refuse_unknown(table, {*kinds, "acceptance_prior"}, "[speculation]")
    given = {name: _typed(table[name], kind, f"speculation.{name}") for name, kind in kinds.items() if name in table}
    costs = {name: given.pop(name) for name in _COSTS if name in given}
    prior = table.get("acceptance_prior")
    return Settings(**given, cost=CostModel(**costs), rates=None if prior is None else _rates(prior))


def acceptance_prior(rates: MeasuredRates) -> str:
    """The table [speculation.acceptance_prior] as TOML text that `parse_settings` reads back to the same rates."""
    run = rates.origin
    lines = ["[speculation.acceptance_prior]", f'rate = "{rates.definition}"']
    for name, phase in (("think", rates.think), ("output", rates.output)):
        lines += [f"{name} = {phase.rate.value!r}", f"{name}_interval = [{phase.rate.low!r}, {phase.rate.high!r}]"]
        if phase.curve is not None:
            rows = ", ".join(f"[{c.value!r}, {c.low!r}, {c.high!r}]" for c in phase.curve)
            lines.append(f"{name}_curve = [{rows}]")
    lines += [f"{key} = {_toml(getattr(run, field))}" for key, field in _RUN.items()]
    sampling = ", ".join(f"{k} = {_toml(v)}" for k, v in asdict(run.sampling).items() if v is not None)
    return "\n".join([*lines, f"sampling = {{ {sampling} }}"]) + "\n"


def _rates(prior: Any) -> MeasuredRates:
    where = "[speculation.acceptance_prior]"
    table = _table(prior, where)
    required = {*_RATES, *_RUN, "sampling", "rate"}
    _refuse_unknown(table, required | set(_CURVES), where)
    if missing := sorted(required - table.keys()):
        raise ValueError(f"{where} lacks {', '.join(missing)}; rates count only with the run that they come from")
    if table["untrimmed"] is not True:
        raise ValueError(f"{where} must say untrimmed = true: a trimmed run never saw what it would have accepted")
    sampling = _table(table["sampling"], "sampling")
    _refuse_unknown(sampling, {"temperature", "top_k", "top_p", "min_p"}, "sampling")
    if "temperature" not in sampling:
        raise ValueError("sampling must name its temperature; 0 means greedy")
    run = {field: table[key] for key, field in _RUN.items()}
    if not isinstance(run["seeds"], list):
        raise ValueError(f"seeds must be a list of whole numbers, got {run['seeds']!r}")
    origin = Measured(**run | {"seeds": tuple(run["seeds"]), "sampling": Sampling(**sampling)})
    think, output = (
        PhaseRate(_interval([table[n], *_list(table[f"{n}_interval"], 2, f"{n}_interval")], n), _curve(table, n))
        for n in ("think", "output")
    )
    definition: Definition = table["rate"]
    return MeasuredRates(origin, think, output, definition)


def _curve(table: Mapping[str, Any], phase: str) -> tuple[Interval, ...] | None:
    name = f"{phase}_curve"
    if name not in table:
        return None
    rows = _list(table[name], None, name)
    return tuple(_interval(_list(row, 3, name), name) for row in rows)


def _interval(numbers: list[Any], name: str) -> Interval:
    value, low, high = (float(_typed(number, float, name)) for number in numbers)
    return Interval(value, low, high)


def _list(value: Any, length: int | None, name: str) -> list[Any]:
    if not isinstance(value, list) or not value or (length is not None and len(value) != length):
        raise ValueError(f"{name} must be a list of {length or 'some'} entries, got {value!r}")
    return value


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table, got {value!r}")
    return value


def _refuse_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(table.keys() - known):
        raise ValueError(f"{where} has no key {', '.join(unknown)}; it knows {', '.join(sorted(known))}")


def _typed(value: Any, kind: type, name: str) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    raise ValueError(f"{name} must be {words[kind]}, got {value!r}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(
            "\x7f", "\\u007F"
        )  # JSON's escapes are TOML's, but for this one character
    return value.isoformat() if isinstance(value, date) else repr(value)
