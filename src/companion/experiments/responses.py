"""Sampled responses of a target to held-out prompts, and the distributions each of their tokens was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import companion
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget
from companion.engine.sampling import distribution
from companion.engine.target import Qwen3Target
from companion.protocols import Sampling
from companion.training.corpus import DOMAINS, MODES, Domain, Mode, held_out_samples


@dataclass(frozen=True, slots=True)
class Response:
    """One response and the cell of the design it belongs to."""

    domain: Domain
    mode: Mode
    result: GenerationResult

    @property
    def tokens(self) -> list[int]:
        """Prompt and response, as the target reads them."""
        return [*self.result.prompt_tokens, *self.result.tokens]


def sample_responses(
    target: TextTarget,
    *,
    prompts: int,
    seed: int,
    max_new_tokens: int = 400,
    temperature: float = 1.0,
    modes: Sequence[Mode] = MODES,
) -> list[Response]:
    """``prompts`` plainly decoded responses for each domain and mode, to prompts that no training run has seen.

    For tiny-qwen3 "held out" is a fact about its training; for another target they are simply prompts. ValueError when
    ``prompts`` is below 1: nothing sampled is no result.
    """
    if prompts < 1:
        raise ValueError(f"prompts must be at least 1 for each domain and mode, got {prompts}")
    if target.tokenizer is None:
        raise ValueError(f"{target.name} came without a tokenizer, so it cannot read prompts")
    responses: list[Response] = []
    for mode in modes:
        for domain in DOMAINS:
            ids = [
                target.encode(
                    target.tokenizer.apply_chat_template(
                        sample.messages, tokenize=False, add_generation_prompt=True, enable_thinking=mode == "think"
                    )
                )
                for sample in held_out_samples(domain, mode, prompts, seed=seed)
            ]
            results = companion.generate(
                target, None, ids, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, max_batch=prompts
            )
            responses += [Response(domain, mode, result) for result in results]
    return responses


def response_logits(model: Qwen3Target, response: Response) -> Tensor:
    """Logits [T, V] in fp64 of the T rows that the response's tokens were drawn from, read in one forward pass.

    Only the columns of ids that the tokenizer knows: the rest of a padded head can never be sampled.
    """
    logits = model.logits(response.tokens)[len(response.result.prompt_tokens) - 1 : -1, : model.usable_vocab]
    return logits.to("cpu", torch.float64)


def response_rows(model: Qwen3Target, response: Response, sampling: Sampling | None = None) -> Tensor:
    """The distributions [T, V] of the response's tokens in fp64, after ``sampling`` (None: temperature 1, all)."""
    return distribution(response_logits(model, response), sampling or Sampling())
