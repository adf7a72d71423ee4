"""Random tiny Qwen3 models: transformers' own module, ours on the same weights, and folders in the hub's layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.load import TextTarget
from companion.engine.request import Request, StopRule
from companion.engine.target import Qwen3Shape, Qwen3Target
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Context, Drafter, Policy, Sampling

torch.set_num_threads(1)

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)


def reference_model(seed: int = 0, *, sharpness: float = 1.0, **changes: Any) -> Qwen3ForCausalLM:
    """A random Qwen3 of transformers; norm weights are random too, and ``sharpness`` scales the head."""
    settings: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**(settings | changes))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
        model.get_output_embeddings().weight.mul_(sharpness)
    return model


def ours(model: Qwen3ForCausalLM, **options: Any) -> Qwen3Target:
    """The engine's target on the same weights."""
    weights = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight")
    return Qwen3Target(Qwen3Shape.from_config(model.config.to_dict()), weights, **options)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, Qwen3's control tokens, and a chat template with the thinking toggle: 261 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def text_target(seed: int = 0, **changes: Any) -> TextTarget:
    """A target with a tokenizer, as `load_target` makes it, without files."""
    tokenizer = byte_tokenizer()
    model = reference_model(seed, **({"vocab_size": 272, "max_position_embeddings": 512} | changes))
    shape = Qwen3Shape.from_config(model.config.to_dict())
    target = TextTarget(shape, model.state_dict(), name=f"random-{seed}", usable_vocab=len(tokenizer))
    target.tokenizer, target.tags = tokenizer, ThinkTokens.of(tokenizer)
    target.eos_token_ids = frozenset([tokenizer.eos_token_id])
    target.source = {}
    return target


def save_model(folder: Path, seed: int = 0, *, shards: str | None = None, **changes: Any) -> Qwen3ForCausalLM:
    """Write a model folder with transformers' own `save_pretrained`; ``shards`` is its max_shard_size."""
    model = reference_model(seed, **({"vocab_size": 272} | changes))
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    byte_tokenizer().save_pretrained(folder)
    return model


def edit_json(path: Path, **changes: Any) -> None:
    record = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(record))


def decode_ids(
    target: Qwen3Target,
    drafter: Drafter | None,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    sampling: Sampling | None = None,
    *,
    stops: frozenset[int] = frozenset(),
    seed: int = 0,
    policy: Policy | None = None,
    max_batch: int | None = None,
) -> list[Request]:
    """Token ids in, finished requests out, in the order of the prompts: the engine with its keyed random numbers."""
    engine = Engine(target, drafter, policy, max_batch=max_batch or len(prompts))
    requests = [
        Request(
            context=Context(i, list(ids), sampling or Sampling(0.0), KeyedDraws(seed, request_key(ids, 0))),
            prompt_length=len(ids),
            stop=StopRule(new_tokens, stops),
            tracker=PhaseTracker(ThinkTokens(None, None), ids),
        )
        for i, ids in enumerate(prompts)
    ]
    for request in requests:
        engine.submit(request)
    for _ in engine.run():
        pass
    return requests
