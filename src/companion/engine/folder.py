"""Names to folders: the embedded models, a local folder in the hub's layout, or a hub id at a revision."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from companion.provenance import file_hash

# names of what ships with the project, and where it lies in the data folder
EMBEDDED = {"tiny-qwen3": "tiny-qwen3", "tiny-qwen3-draft": "tiny-qwen3-draft"}
DRAFTERS = {
    name: f"drafters/{name}"
    for name in ("dflash", "dspark", "dspark-rnn", "eagle3", "dspark-think-5", "dspark-think-50", "dspark-think-100")
}


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
        return read_json(self.path / "config.json", "a model folder holds config.json, *.safetensors and a tokenizer")

    def weight_files(self) -> list[Path]:
        """The safetensors files, one or sharded; pickled weights are refused (ValueError)."""
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            names = sorted(set(read_json(index, "the index of sharded weights").get("weight_map", {}).values()))
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


def read_json(path: Path, hint: str) -> dict[str, Any]:
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

    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # the hub's own errors are of these two kinds
        what, advice = _reason(error)
        at = "" if revision is None else f" at revision {revision!r}"
        raise ValueError(
            f"cannot get {name!r}{at} from the hub ({what}); {advice}, or give an embedded model "
            f"({', '.join(sorted(EMBEDDED))}) or a local folder"
        ) from error


def _reason(error: Exception) -> tuple[str, str]:
    """What went wrong with a download, and what to do about it."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    match error:
        case hub.GatedRepoError():
            return "its owner wants to be asked", "accept the terms on its page and log in with `hf auth login`"
        case hub.RepositoryNotFoundError():
            return "there is no such model, or it is private", "check the name, or log in with `hf auth login`"
        case hub.RevisionNotFoundError():
            return "the model has no such revision", "name a branch, a tag or a commit of it"
        case hub.LocalEntryNotFoundError():
            reached = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it cannot be reached"
            return f"{reached}, and {constants.HF_HUB_CACHE} holds no copy", "connect to a network, once"
    return str(error).splitlines()[0] if str(error) else type(error).__name__, "check the name and the network"
