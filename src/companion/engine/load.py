"""Names to targets: the embedded models, a local folder, or a hub id."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from companion.engine.target import Qwen3Shape, Qwen3Target
from companion.phase.tracker import ThinkTokens
from companion.provenance import file_hash

# names of what ships with the project, and where it lies in the data folder
EMBEDDED = {"tiny-qwen3": "tiny-qwen3", "tiny-qwen3-draft": "tiny-qwen3-draft"}
DRAFTERS = {
    name: f"drafters/{name}"
    for name in ("dflash", "dspark", "dspark-rnn", "eagle3", "dspark-think-50", "dspark-think-100")
}


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


def data_folder() -> Path:
    """The folder of embedded models and stored results: COMPANION_DATA, or `data/` of the checkout."""
    return Path(os.environ.get("COMPANION_DATA") or Path(__file__).resolve().parents[3] / "data")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A local folder in the hub's layout, and where it came from."""

    path: Path
    name: str
    revision: str | None = None

    def config(self) -> dict[str, Any]:
        return _read_json(self.path / "config.json", "a model folder holds config.json, *.safetensors and a tokenizer")

    def weight_files(self) -> list[Path]:
        """The safetensors files, one or sharded; pickled weights are refused (ValueError)."""
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            names = sorted(set(_read_json(index, "the index of sharded weights").get("weight_map", {}).values()))
            if not names:
                raise ValueError(f"{index} has no 'weight_map', so it names no weights; fetch the model again")
            missing = [n for n in names if not (self.path / n).is_file()]
            if missing:
                raise ValueError(f"{self.path} lacks the weight file {missing[0]} that its index names; fetch it again")
            return [self.path / name for name in names]
        single = self.path / "model.safetensors"
        if single.is_file():  # whatever lies beside it: an adapter, an optimizer's state, the same weights once more
            return [single]
        files = sorted(self.path.glob("*.safetensors"))
        if files:
            return files
        pickled = [*self.path.glob("*.bin"), *self.path.glob("*.pt"), *self.path.glob("*.pth")]
        if pickled:
            raise ValueError(f"{self.path} holds pickled weights only ({pickled[0].name}); convert them to safetensors")
        raise ValueError(f"{self.path} holds no weights: expected model.safetensors beside config.json")

    def weights(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for file in self.weight_files():
            try:
                tensors |= load_file(file)
            except (SafetensorError, OSError) as error:
                raise ValueError(
                    f"{file} is not a whole safetensors file ({error}); fetch or train it again"
                ) from error
        return tensors

    def describe(self) -> dict[str, Any]:
        """Identity for provenance: name, revision, and the sha256 of each weight file."""
        hashes = {file.name: file_hash(file) for file in self.weight_files()}
        return {"name": self.name, "revision": self.revision, "weights_sha256": hashes}


def find_model(name: str, revision: str | None = None) -> ModelFolder:
    """An embedded model's name, a folder, or a hub id to a local folder. ValueError says which names there are."""
    if place := (EMBEDDED | DRAFTERS).get(name):
        path = data_folder() / place
        if not path.is_dir():
            raise ValueError(
                f"the embedded model {name} is not at {path}: run from a checkout, or set COMPANION_DATA to its "
                f"data folder"
            )
        return ModelFolder(path, name)
    path = Path(name)
    if path.is_dir():
        return ModelFolder(path, path.name, _commit(path))
    known = ", ".join(sorted(EMBEDDED))
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ValueError(
            f"there is no model {name!r}: give an embedded one ({known}), an existing folder, or a hub id such "
            f"as Qwen/Qwen3-0.6B"
        )
    path = _download(name, revision)
    return ModelFolder(path, name, _commit(path) or revision)


def _commit(path: Path) -> str | None:
    """Of a model in the hub's cache, where a folder is called after its commit."""
    return path.name if path.parent.name == "snapshots" else None


def load_target(
    name: str = "tiny-qwen3",
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> TextTarget:
    """Load a Qwen3 target: an embedded model, a folder in the hub's layout, or a hub id.

    ``dtype`` None means fp32 on a CPU and bf16 on a GPU. Raises ValueError for an unknown name, a folder without
    weights, another architecture, or weights that do not fit their configuration.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be a floating-point torch.dtype such as torch.float32, got {dtype!r}")
    device = _device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but PyTorch sees no GPU here; use device='cpu'")
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    folder = find_model(name, revision)
    config = folder.config()
    shape = Qwen3Shape.from_config(config)
    tokenizer = _load_tokenizer(folder.path)
    usable = shape.vocab_size if tokenizer is None else len(tokenizer)
    if usable > shape.vocab_size:
        raise ValueError(
            f"the tokenizer of {name} knows {usable} tokens, its weights have rows for {shape.vocab_size} only: "
            "they do not belong together"
        )
    target = TextTarget(shape, folder.weights(), name=folder.name, device=device, dtype=dtype, usable_vocab=usable)
    target.tokenizer = tokenizer
    target.tags = ThinkTokens(None, None) if tokenizer is None else ThinkTokens.of(tokenizer)
    target.eos_token_ids = _eos(folder.path, config, tokenizer)
    target.source = {**folder.describe(), "dtype": str(dtype).removeprefix("torch."), "device": str(device)}
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


def _eos(path: Path, config: dict[str, Any], tokenizer: Any) -> frozenset[int]:
    """Stop tokens as transformers resolves them: generation_config.json, then config.json, then the tokenizer."""
    generation = path / "generation_config.json"
    found = _read_json(generation, "").get("eos_token_id") if generation.is_file() else None
    own = None if tokenizer is None else tokenizer.eos_token_id
    found = next((e for e in (found, config.get("eos_token_id"), own) if e is not None), None)
    return frozenset([found] if isinstance(found, int) else found or ())


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent} has no {path.name}: {hint}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} holds {type(record).__name__} and not a JSON object; fetch it again")
    return record


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"])
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"cannot get {name!r} from the hub ({reason}); check the name and the network, or give an embedded model "
            f"({', '.join(sorted(EMBEDDED))}) or a local folder"
        ) from error
