"""The mixin before vLLM's `Scheduler` and `AsyncScheduler`: the three methods in which a step passes by.

``update_draft_token_ids`` hands over the drafts of a synchronous step, ``_update_after_schedule`` sets the placeholders
of an asynchronous one; each mode passes through one of the two only, so both shorten. ``update_from_output`` takes the
step's tokens in.
"""

from __future__ import annotations

from typing import Any, ClassVar

from companion.rounds import RoundsWriter
from companion.serving.vllm.options import Options, build_policy
from companion.serving.vllm.plugin import options_of
from companion.serving.vllm.release import check_release
from companion.serving.vllm.steering import Steering


class PolicyMixin:
    """Reads its options from vLLM's configuration or the environment; ValueError there stops vLLM before it serves."""

    release: ClassVar[str]  # of the vLLM that the class was made with
    asynchronous: ClassVar[bool]
    requests: dict[str, Any]
    num_spec_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = kwargs.get("vllm_config") or args[0]
        options = options_of(config.additional_config)
        self._check(options, config)
        policy = None
        if options.policy is not None:
            vocab_size = config.model_config.get_vocab_size()
            policy = build_policy(options.policy, vocab_size=vocab_size, deepest=self.num_spec_tokens)
        writer = RoundsWriter(options.log, None, fresh=True) if options.log else None
        self.options, self.steering = options, Steering(policy, options.tags, writer)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        self._shorten(draft_token_ids.req_ids)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        self.steering.scheduled(self.requests, scheduler_output)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        self._shorten(scheduler_output.num_scheduled_tokens)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        steps = self.steering.before(self.requests, scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self.steering.after(steps)
        return outputs

    def _check(self, options: Options, config: Any) -> None:
        check_release(self.release, untested=options.untested)
        if not self.num_spec_tokens:
            raise ValueError("vLLM runs without a speculative_config, so there is no depth to decide; add one")
        if bool(config.scheduler_config.async_scheduling) != self.asynchronous:
            other = "PolicyScheduler" if self.asynchronous else "AsyncPolicyScheduler"
            raise ValueError(
                f"vLLM runs with async_scheduling {'off' if self.asynchronous else 'on'}, which {type(self).__name__} "
                f"does not serve: name companion.serving.vllm_scheduler.{other}"
            )
        if options.log and config.parallel_config.data_parallel_size > 1:
            raise ValueError(
                f"{options.log} would be written by every one of the data-parallel engines; leave the log out, or run "
                "one engine"
            )

    def _shorten(self, names: Any) -> None:
        self.steering.shorten(self.requests[name] for name in names if name in self.requests)
