"""What our scheduler and probe are told inside vLLM: one table, ``companion``, in vLLM's ``additional_config``.

It travels to the engine's processes with vLLM's own configuration, from `LLM(additional_config=...)` and from
``vllm serve --additional-config`` alike::

    {"companion": {"tags": {"open": 151667, "close": 151668, "turn": 151644},
                   "policy": {"think": 2, "output": 7}, "log": "steps.jsonl", "probe": "rows.jsonl"}}

``policy`` is one of ``{"depth": 3}``, ``{"think": 2, "output": 7}``, ``{"hook": "hook.toml", "target": ...,
"drafter": ..., "target_revision": ..., "drafter_revision": ...}`` and ``{"factory": "module:callable", "arguments":
{...}}``; without it the scheduler keeps vLLM's depths and only writes its ``log``. A request says
``extra_args={"companion_depth": "off"}`` to be left to vLLM, or a number to be drafted no deeper than that;
``companion_request`` names it in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from companion.phase.tracker import ThinkTokens
from companion.protocols import Policy
from companion.scheduling.by_phase import DepthByPhase
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.hook_settings import load_hook
from companion.scheduling.phase_hook import PhaseHook, Serving
from companion.scheduling.retrospective import Retrospective

TABLE = "companion"
DEPTH_ARGUMENT = "companion_depth"
NAME_ARGUMENT = "companion_request"
OFF = "off"
_KEYS = ("tags", "policy", "log", "probe", "untested")
_HOOK_KEYS = ("hook", "target", "drafter", "target_revision", "drafter_revision")


@dataclass(frozen=True, slots=True)
class Options:
    """``log`` is the scheduler's file of rounds, ``probe`` the file of row statistics; both are begun anew."""

    tags: ThinkTokens
    policy: Mapping[str, Any] | None = None
    log: Path | None = None
    probe: Path | None = None
    untested: bool = False

    def to_dict(self) -> dict[str, Any]:
        """``additional_config``: nothing but what JSON holds. `from_config` reads it back."""
        table: dict[str, Any] = {
            "tags": {name: getattr(self.tags, name) for name in ("open", "close", "turn")},
            "policy": dict(self.policy) if self.policy else None,
            "log": str(self.log) if self.log else None,
            "probe": str(self.probe) if self.probe else None,
            "untested": self.untested or None,
        }
        return {TABLE: {name: value for name, value in table.items() if value is not None}}

    @classmethod
    def from_config(cls, additional: Any) -> Options:
        """From vLLM's ``additional_config``. ValueError without our table, or with a key that it does not know."""
        table = additional.get(TABLE) if isinstance(additional, Mapping) else None
        if not isinstance(table, Mapping):
            raise ValueError(
                f'additional_config has no table "{TABLE}", so there is no policy to apply and nothing to log; print '
                "one with companion vllm options"
            )
        _refuse_unknown(table, _KEYS, TABLE)
        tags = table.get("tags")
        if not isinstance(tags, Mapping) or not {"open", "close"} <= tags.keys():
            raise ValueError(f'"tags" must hold the token ids "open" and "close" of a think span, got {tags!r}')
        _refuse_unknown(tags, ("open", "close", "turn"), "tags")
        if any(not (value is None or type(value) is int) for value in tags.values()):
            raise ValueError(f'"tags" are token ids, got {dict(tags)!r}')
        policy = table.get("policy")
        if policy is not None and not isinstance(policy, Mapping):
            raise ValueError(f'"policy" must be a table, got {policy!r}')
        paths = {name: Path(table[name]) for name in ("log", "probe") if table.get(name)}
        return cls(ThinkTokens(**tags), policy, untested=table.get("untested") is True, **paths)


def build_policy(asked: Mapping[str, Any], *, vocab_size: int, deepest: int) -> Policy:
    """The policy of a table; ``deepest`` is vLLM's num_speculative_tokens.

    ValueError for a table that names none, and for a policy that needs what vLLM's scheduler does not see: confidences
    or entropies.
    """
    keys = set(asked)
    if keys == {"depth"}:
        policy: Any = FixedDepth(asked["depth"])
    elif keys == {"think", "output"}:
        policy = DepthByPhase(asked["think"], asked["output"])
    elif "hook" in keys:
        policy = _hook(asked, vocab_size, deepest)
    elif "factory" in keys and keys <= {"factory", "arguments"}:
        policy = _made(str(asked["factory"]), asked.get("arguments", {}))
    else:
        raise ValueError(
            f'a policy is {{"depth"}}, {{"think", "output"}}, {{"hook", "target", "drafter"}} or {{"factory", '
            f'"arguments"}}, got {", ".join(sorted(keys)) or "an empty table"}'
        )
    if isinstance(policy, Retrospective) or not isinstance(policy, Policy):
        raise ValueError(f"{policy!r} is no policy that keeps the output's law; give one of protocols.Policy")
    return policy


def _hook(asked: Mapping[str, Any], vocab_size: int, deepest: int) -> PhaseHook:
    _refuse_unknown(asked, _HOOK_KEYS, "policy")
    missing = [name for name in ("target", "drafter") if not asked.get(name)]
    if missing:
        raise ValueError(f"a hook's policy lacks {' and '.join(missing)}: its rates hold for the models that they name")
    serving = Serving(**{name: asked[name] for name in _HOOK_KEYS[1:] if asked.get(name)})
    hook = load_hook(Path(asked["hook"]), serving=serving, vocab_size=vocab_size, deepest=deepest, deterministic=False)
    if hook.rates is None:
        raise ValueError(
            f"{asked['hook']} has no measured rates, and vLLM's scheduler sees no entropy, so the hook would keep its "
            "baseline for ever; write the rates of a recording into it (companion experiment phase-rates)"
        )
    return hook


def _made(name: str, arguments: Any) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute or not isinstance(arguments, Mapping):
        raise ValueError(f'a factory is "module:callable" with a table of arguments, got {name!r} and {arguments!r}')
    try:
        return getattr(import_module(module), attribute)(**arguments)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"{name} cannot make a policy ({error})") from error


def depth_asked(extra: Mapping[str, Any] | None) -> int | str | None:
    """A request's own say: OFF, the most it wants drafted, or None. ValueError for anything else."""
    value = (extra or {}).get(DEPTH_ARGUMENT)
    if value is None or value == OFF or (type(value) is int and value >= 0):
        return value
    raise ValueError(f'{DEPTH_ARGUMENT} must be "{OFF}" or a number of tokens, got {value!r}')


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(table) - set(known)):
        raise ValueError(f"{where} has no key {', '.join(unknown)}; it knows {', '.join(known)}")
