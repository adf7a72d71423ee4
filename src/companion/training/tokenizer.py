"""A small byte-level BPE tokenizer that behaves as Qwen3's: its pre-tokenizer, control tokens and chat toggle."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .corpus import Sample, training_sample
from .corpus.sample import SOFT_SWITCH

VOCAB_SIZE = 1024
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THINK_START, THINK_END = "<think>", "</think>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
CONTROL = (*SPECIAL, THINK_START, THINK_END)
# Qwen2 and Qwen3 split text in this way before merging; \p{N} without + keeps every digit a token of its own
PRETOKENIZE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL = re.compile("|".join(map(re.escape, CONTROL)))
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(
    texts: Iterable[str], vocab_size: int = VOCAB_SIZE, model_max_length: int = 2048
) -> PreTrainedTokenizerFast:
    """Learn merges on ``texts`` and wrap them with Qwen3's control tokens and a chat template with ``enable_thinking``.

    The think tokens are added tokens but not *special* ones, as in Qwen3, so ``skip_special_tokens`` keeps them.
    Raises ValueError when ``texts`` are too few to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in CONTROL[len(SPECIAL) :]])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the texts gave {tokenizer.get_vocab_size()} tokens and {vocab_size} were asked for: give more varied text"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )


def corpus_texts(seed: int, samples: int) -> Iterable[str]:
    """Training samples as plain text, without the control tokens, across which nothing is merged."""
    for i in range(samples):
        prompt, response = render(training_sample(seed, i))
        yield from _CONTROL.split(prompt + response)


def render(sample: Sample) -> tuple[str, str]:
    """The prompt the model reads and the text it is trained to write, ending with ``<|im_end|>``.

    Equal to the chat template's text (a test compares them); with thinking off the empty span belongs to the prompt,
    except after the soft switch, where the model writes it.
    """
    turns = "".join(f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in sample.messages)
    prompt, response = f"{turns}{TURN_START}assistant\n", f"{sample.response}{TURN_END}"
    if sample.mode == "think":
        return prompt, response
    empty = f"{THINK_START}\n\n{THINK_END}\n\n"
    return (prompt, empty + response) if sample.prompt.endswith(SOFT_SWITCH) else (prompt + empty, response)
