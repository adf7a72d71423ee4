"""vLLM in this process: `LLM` with a drafter, its detailed metrics on, and our scheduler where it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from companion.phase.sources import DRAFTS_EVERY_STEP
from companion.protocols import Sampling
from companion.serving.vllm.export import check_layout
from companion.serving.vllm.options import NAME_ARGUMENT, Options
from companion.serving.vllm.release import check_release, installed_release, require_vllm
from companion.serving.vllm.rounds import Answer, Counters, Question

METHODS = (*sorted(DRAFTS_EVERY_STEP), "ngram")
SCHEDULERS = {False: "PolicyScheduler", True: "AsyncPolicyScheduler"}
PROBE = "companion.serving.vllm_probe:RowProbe"
COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What vLLM is started with; ``arguments`` go to ``LLM`` as they are (tensor_parallel_size, enforce_eager, ...).

    ``options`` None leaves vLLM's own scheduler in place. ValueError for a method or depth that is none, a method
    without its drafter, and a drafter in a layout that vLLM does not read.
    """

    target: str
    method: str
    depth: int
    drafter: str | None = None
    target_revision: str | None = None
    drafter_revision: str | None = None
    options: Options | None = None
    asynchronous: bool = False
    seed: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if not hasattr(self.depth, "__index__") or self.depth < 1:
            raise ValueError(
                f"depth must be an integer of at least 1, got {self.depth!r}; it is num_speculative_tokens"
            )
        if (self.drafter is None) != (self.method == "ngram"):
            raise ValueError(
                "ngram looks drafts up in the text and takes no drafter; leave it out"
                if self.drafter
                else f"{self.method} needs a drafter: a folder or a hub id"
            )
        if self.drafter is not None:
            check_layout(self.method, self.drafter)

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of vLLM's ``LLM``."""
        speculative = {"method": self.method, "num_speculative_tokens": int(self.depth), **self.speculative}
        if self.drafter is not None:
            speculative |= {"model": self.drafter}
            if self.drafter_revision:
                speculative |= {"revision": self.drafter_revision}
        keywords: dict[str, Any] = {
            "model": self.target,
            "speculative_config": speculative,
            "per_request_spec_decode_metrics": "detailed",
            "disable_log_stats": False,
            "seed": self.seed,
        }
        if self.target_revision:
            keywords |= {"revision": self.target_revision, "tokenizer_revision": self.target_revision}
        if self.options is not None:
            keywords |= {
                "scheduler_cls": f"companion.serving.vllm_scheduler.{SCHEDULERS[self.asynchronous]}",
                "async_scheduling": self.asynchronous,
                "additional_config": self.options.to_dict(),
            }
            if self.options.probe is not None:
                keywords |= {"logits_processors": [PROBE]}
        return keywords | dict(self.arguments)


class Offline:
    """The engine of a `Setup`; starting it takes vLLM's usual minute. ValueError where vLLM refuses the setup."""

    max_context: int | None

    def __init__(self, setup: Setup, *, untested: bool = False) -> None:
        vllm = require_vllm(untested=untested)
        self.setup, self.release = setup, check_release(installed_release() or "", untested=untested)
        self._parameters = vllm.SamplingParams
        try:
            self._llm = vllm.LLM(**setup.keywords())
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"vLLM {self.release} refuses this setup: {' '.join(str(error).split())[:600]}") from error
        self.max_context = self._llm.llm_engine.vllm_config.model_config.max_model_len

    def answer(
        self, questions: Sequence[Question], sampling: Sampling, *, seed: int, max_new_tokens: int
    ) -> list[Answer]:
        """All answers, batched as vLLM batches."""
        parameters = [
            self._parameters(
                temperature=sampling.temperature,
                top_k=sampling.top_k or 0,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                seed=seed,
                max_tokens=max_new_tokens,
                skip_special_tokens=False,
                extra_args={NAME_ARGUMENT: question.prompt_id},
            )
            for question in questions
        ]
        prompts = [{"prompt_token_ids": list(question.tokens)} for question in questions]
        return [_answer(result) for result in self._llm.generate(prompts, parameters, use_tqdm=False)]

    def counters(self) -> Counters:
        """The engine's counts so far."""
        metrics = self._llm.get_metrics()
        found = {name: [m.value for m in metrics if m.name == full] for name, full in COUNTERS.items()}
        if not all(found.values()):
            raise ValueError("vLLM counts no speculation; leave disable_log_stats off")
        return Counters(**{name: int(sum(values)) for name, values in found.items()})


def _answer(result: Any) -> Answer:
    (output,) = result.outputs
    metrics = output.spec_decode_metrics
    return Answer(tuple(output.token_ids), output.finish_reason, None if metrics is None else metrics.to_dict())
