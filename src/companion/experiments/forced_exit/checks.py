"""Is the answer right? Mathematics and code have a result; chat has a length that the prompt asks for."""

from __future__ import annotations

import re

from companion.training.corpus import Domain, Sample, held_out_samples, is_right
from companion.training.corpus.chat import ENDINGS, OPENERS, REQUESTS

_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")


def asked_sentences(prompt: str) -> int | None:
    """How many sentences a chat prompt asks for; None where it leaves that open."""
    return next((count for request, count, _ in REQUESTS if request and count and prompt.endswith(request)), None)


def answered_sentences(answer: str) -> int:
    """Sentences of an answer, the grammar's opener and closing wish not counted."""
    text = answer.strip()
    for opener in OPENERS:
        text = text.removeprefix(opener)
    for ending in ENDINGS:
        text = text.removesuffix(ending)
    return len(_SENTENCE_END.findall(text))


def checkable_samples(domain: Domain, count: int, seed: int) -> list[Sample]:
    """``count`` held-out prompts, thinking on, whose answer can be checked: of chat those that ask for a length."""
    if domain != "chat":
        return held_out_samples(domain, "think", count, seed)
    wanted = 2 * count + 40
    while True:  # the list only grows at its end, so that the prompts do not depend on how many are looked at
        found = [s for s in held_out_samples(domain, "think", wanted, seed) if asked_sentences(s.prompt)]
        if len(found) >= count:
            return found[:count]
        wanted += count


def answers(sample: Sample, response: str, ended: bool) -> bool:
    """Whether a response that ``ended`` by itself is right. A thought that was never closed has no answer."""
    if not ended or ("<think>" in response and "</think>" not in response):
        return False
    if sample.final is not None:
        return is_right(sample.final, response)
    return answered_sentences(response.rsplit("</think>", 1)[-1]) == asked_sentences(sample.prompt)
