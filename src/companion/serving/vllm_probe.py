"""Entropy, max-p and the closing tag's mass of every row that vLLM verifies, written down. Only vLLM imports this.

    LLM(..., logits_processors=["companion.serving.vllm_probe:RowProbe"],
        additional_config={"companion": {"tags": {...}, "probe": "rows.jsonl"}})

A logits processor of Model Runner V2, which sees one row per verified position before temperature and filters; it
changes none. Requests with ``extra_args={"companion_request": NAME}`` are written, all others are left alone. Runner V1
has no place for it: there vLLM refuses custom processors together with speculation. Named where it is wanted and not
registered as a plug-in, since a registered processor is loaded by every vLLM of the environment, with runner V1 too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from companion.serving.vllm.options import NAME_ARGUMENT, Options
from companion.serving.vllm.row_file import RowFile


class RowProbe(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """ValueError without a ``probe`` file in the options. Of tensor-parallel workers the first writes."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        options = Options.from_config(vllm_config.additional_config)
        if options.probe is None:
            raise ValueError('additional_config names no file for row statistics; add "probe" to the table "companion"')
        first = vllm_config.parallel_config.rank == 0
        self._rows = RowFile(options.probe, options.tags.close) if first else None

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Whether the request's rows are read."""
        name = (sampling_params.extra_args or {}).get(NAME_ARGUMENT)
        return self._rows is not None and self._rows.follow(req_idx, None if name is None else str(name))

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:  # [N, V]
        if self._rows is not None:
            self._rows.record(logits, ctx.expanded_idx_mapping, ctx.pos)
        return logits
