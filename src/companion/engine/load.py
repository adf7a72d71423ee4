"""Names to targets: the embedded models, a local folder, or a hub id."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from companion.engine.folder import DRAFTERS, EMBEDDED, ModelFolder, data_folder, find_model, read_json
from companion.engine.memory import check_weights
from companion.engine.random_weights import RANDOM, RandomWeights, qwen3_weight_shapes, random_source
from companion.engine.shape import SIZES, Qwen3Shape, qwen3_config
from companion.engine.target import Qwen3Target
from companion.phase.tracker import ThinkTokens

__all__ = ["DRAFTERS", "EMBEDDED", "ModelFolder", "TextTarget", "data_folder", "find_model", "load_target"]


class TextTarget(Qwen3Target):
    """A Qwen3 target with its tokenizer, chat template and stop tokens.

    A folder without tokenizer files gives a target without one (``tokenizer`` None): it takes and gives token ids only.
    """

    tokenizer: Any | None
    tags: ThinkTokens
    eos_token_ids: frozenset[int]
    source: dict[str, Any]

    def render(self, prompt: str, *, thinking: bool = True) -> list[int]:
        """Token ids of one user message in the chat template, up to where the answer begins.

        A prompt that contains one of the template's control tokens is refused (ValueError): it would be read as
        structure and not as text.
        """
        if not prompt.strip():
            raise ValueError("the prompt is empty; write a question or an instruction")
        tokenizer = self._tokenizer()
        for control in sorted(tokenizer.get_added_vocab()):
            if control in prompt:
                raise ValueError(
                    f"the prompt contains the control token {control}, which the model would read as structure and "
                    "not as text; remove it, or pass token ids to keep it on purpose"
                )
        if not thinking and not self.thinking_switch:
            raise ValueError(
                f"the chat template of {self.name} has no enable_thinking, so thinking cannot be turned off; leave it "
                "on, or pass token ids of a prompt that you rendered"
            )
        return self.encode(self._chat(prompt, thinking))

    @cached_property
    def thinking_switch(self) -> bool:
        """Whether the chat template knows ``enable_thinking``; models that always or never think have none."""
        return self._chat("?", True) != self._chat("?", False)

    def _chat(self, prompt: str, thinking: bool) -> str:
        tokenizer, message = self._tokenizer(), [{"role": "user", "content": prompt}]
        if not tokenizer.chat_template:
            raise ValueError(
                f"the tokenizer of {self.name} has no chat template, so a message cannot be put to the model; pass "
                "token ids (input_ids=), or add the template that the model was trained with"
            )
        return str(
            tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, enable_thinking=thinking)
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of raw text, control tokens included; ValueError on text that is not valid Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text holds {text[error.start]!r}, half of a surrogate pair, which is no character: it was "
                "decoded with a wrong encoding, or cut in the middle of one"
            ) from error
        return list(self._tokenizer().encode(text, add_special_tokens=False))

    def decode(self, tokens: Any, *, keep_special: bool = False) -> str:
        """Text of token ids; think tags stay, turn markers go unless ``keep_special``. Empty without a tokenizer."""
        if self.tokenizer is None:
            return ""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not keep_special))

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} came without a tokenizer, so it cannot read text; pass token ids (input_ids=)"
            )
        return self.tokenizer


def load_target(
    name: str = "tiny-qwen3",
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    random_weights: bool = False,
    graphs: bool = False,
) -> TextTarget:
    """Load a Qwen3 target: an embedded model, a folder in the hub's layout, or a hub id.

    ``dtype`` None means fp32 on a CPU and bf16 on a GPU. ``revision`` pins a hub id to a branch, tag or commit; a
    commit that is in the hub's cache needs no network. ``random_weights`` draws the weights instead (seed 0), for
    timing: of a hub id in `companion.engine.shape.SIZES` from its shapes alone, which needs neither network nor
    tokenizer, of anything else as its folder's config.json says. ``graphs`` runs short streams, and the blocks
    of a DSpark or DFlash drafter loaded for this target, as CUDA graphs (`companion.engine.replay`); on a CPU it only
    goes the same way. No GPU has run them yet.

    Raises ValueError for an unknown name, a folder without weights, another architecture, weights that do not fit their
    configuration, and a model larger than the memory that is free.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be a floating-point torch.dtype such as torch.float32, got {dtype!r}")
    device = _device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        why = "" if torch.version.cuda else " (this PyTorch was built without CUDA)"
        raise ValueError(f"device 'cuda' was asked for, but PyTorch sees no GPU here{why}; use device='cpu'")
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    folder = None if random_weights and name in SIZES else find_model(name, revision)
    config = qwen3_config(name) if folder is None else folder.config()
    shape = Qwen3Shape.from_config(config)
    tokenizer = None if folder is None else _load_tokenizer(folder.path)
    usable = shape.vocab_size if tokenizer is None else len(tokenizer)
    if usable > shape.vocab_size:
        raise ValueError(
            f"the tokenizer of {name} knows {usable} tokens, its weights have rows for {shape.vocab_size} only: "
            "they do not belong together"
        )
    weights: Mapping[str, Tensor]
    check_weights(name, config, device, dtype)
    if folder is not None and not random_weights:
        weights, called, source = folder.weights(), folder.name, folder.describe()
    else:
        weights = RandomWeights(qwen3_weight_shapes(config), 0, device, dtype)
        called = f"{folder.name if folder else name} {RANDOM}"
        source = random_source(called, weights.seed)
    target = TextTarget(shape, weights, name=called, device=device, dtype=dtype, usable_vocab=usable)
    target.tokenizer, target.graphs = tokenizer, graphs
    target.tags = ThinkTokens(None, None) if tokenizer is None else ThinkTokens.of(tokenizer)
    target.eos_token_ids = _eos(None if folder is None else folder.path, config, tokenizer)
    target.source = {**source, "dtype": str(dtype).removeprefix("torch."), "device": str(device)}
    return target


def _device(given: torch.device | str) -> torch.device:
    try:
        device = torch.device(given)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("the engine runs on these two alone")
        if device.type != "cuda" or torch.cuda.is_available():
            torch.empty(0, device=device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {given!r} cannot be used here ({reason}); give 'cpu', or 'cuda' on a GPU") from error
    return device


def _load_tokenizer(path: Path) -> Any | None:
    """The folder's tokenizer; None when it holds no tokenizer files at all."""
    from transformers import AutoTokenizer

    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(path))
    except Exception as error:  # transformers passes on whatever it stumbled over: KeyError, validation errors, ...
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{path} has no tokenizer that transformers can load ({reason}); fetch it again") from error


def _eos(path: Path | None, config: dict[str, Any], tokenizer: Any) -> frozenset[int]:
    """Stop tokens as transformers resolves them: generation_config.json, then config.json, then the tokenizer."""
    generation = None if path is None else path / "generation_config.json"
    found = read_json(generation, "").get("eos_token_id") if generation is not None and generation.is_file() else None
    own = None if tokenizer is None else tokenizer.eos_token_id
    found = next((e for e in (found, config.get("eos_token_id"), own) if e is not None), None)
    return frozenset([found] if isinstance(found, int) else found or ())
