"""Chat: a phrase grammar with several openings, two to four sentences of five kinds, and Zipf choices throughout."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .sample import Kind, Mode, Sample, is_held_out, zipf
from .topics import ADJECTIVES, GAINS, PEOPLE, TIPS, TOPICS

ASK = (  # the last four are never used in training
    "Tell me about {t}.",
    "What is good about {t}?",
    "How do I get started with {t}?",
    "Why do people like {t}?",
    "I want to try {t}.",
    "Is {t} worth it?",
    "Give me some advice on {t}.",
    "What should I know about {t}?",
    "Can you recommend {t}?",
    "Say something nice about {t}.",
    "My friend loves {t}. Why?",
    "Help me with {t}.",
    "What would you say about {t}?",
    "Any ideas about {t}?",
    "I heard of {t}.",
    "Describe {t} to me.",
    "Could you share a few thoughts on {t}?",
    "Convince me that {t} is a good idea.",
    "Someone gave me a book on {t}, what will I find in it?",
    "Where does the charm of {t} lie?",
)
UNSEEN = 4
# what the user adds; the number of sentences it asks for (None: free) and how thinking puts it
REQUESTS: tuple[tuple[str, int | None, str], ...] = (
    ("", None, ""),
    ("Keep it short.", 2, "It should be short, so two sentences."),
    ("Answer in three sentences.", 3, "Three sentences are asked for."),
    ("Please go into detail.", 4, "Detail is wanted, so four sentences."),
    ("I am a beginner.", None, "This is a beginner."),
    ("I have little time.", 2, "Time is short, so two sentences."),
    ("It is for my daughter.", None, "It is for a child."),
    ("Be cheerful.", None, "The tone should be cheerful."),
    ("Two sentences, please.", 2, "Two sentences are asked for."),
    ("I am curious.", None, "Someone is curious."),
    ("Write four sentences.", 4, "Four sentences are asked for."),
    ("Be honest.", None, "The tone should be honest."),
)
OPENERS = (
    "Of course!",
    "No problem!",
    "Sure!",
    "Great question!",
    "Happy to help!",
    "Certainly.",
    "Good choice!",
    "With pleasure.",
    "Let me see.",
    "Oh, I like that topic!",
    "Absolutely!",
    "Glad you ask.",
)
KINDS = ("praise", "part", "tip", "reason", "people")
SENTENCES: dict[str, tuple[str, ...]] = {
    "praise": (
        "{T} is {a} and {b}.",
        "I find {t} very {a}.",
        "There is something {a} about {t}.",
        "{T} can be really {a}.",
    ),
    "part": (
        "The {n} is the most {a} part.",
        "A good {n} makes it {a}.",
        "Look at the {n} first, it is {a}.",
        "Without the {n} it would not be {a}.",
    ),
    "tip": (
        "When it comes to the {n}, {i}.",
        "My tip for the {n}: {i}.",
        "With the {n}, {i}.",
        "As for the {n}, just {i}.",
    ),
    "reason": (
        "People enjoy it because {g}.",
        "It is worth it, since {g}.",
        "The best thing is that {g}.",
        "Besides, {g}.",
    ),
    "people": ("It suits {p}.", "It is ideal for {p}.", "{P} often love it.", "Even {p} will like the {n}."),
}
ENDINGS = ("Have fun!", "Enjoy!", "Let me know how it goes.", "Shall I say more?", "Good luck!")

OPEN = (
    "Okay, the question is about {t}.",
    "The user asks about {t}.",
    "Hmm, {t}.",
    "So this is about {t}.",
    "Let me think about {t}.",
    "Alright, {t} it is.",
)
FREE = (
    "I can choose the length, {n} sentences feel right.",
    "No length is given, I take {n}.",
    "Let me write {n} sentences.",
)
RECALL = ("What belongs to it: {l}.", "I think of {l}.", "There is {l}.", "Things to mention: {l}.")
PICK = ("The {n} seems best.", "I like the {n} most.", "The {n} is a good start.", "Let me use the {n}.")
DOUBT = ("Wait, maybe the {n} is better.", "Hmm, or rather the {n}.", "Actually, the {n} is more {a}.")
NAMES = {
    "praise": "some praise",
    "part": "the {n}",
    "tip": "a tip on the {n}",
    "reason": "a reason",
    "people": "who it suits",
}
ORDINALS = ("First", "second", "third", "fourth")
CLOSE = ("That should work.", "Good, now I write it.", "This sounds friendly.", "Fine.", "That is enough.")
WORDS = {2: "two", 3: "three", 4: "four"}


@dataclass(frozen=True, slots=True)
class Plan:
    kind: str
    noun: str
    sentence: str


def _sentence(rng: random.Random, kind: str, field: str, topic: str, noun: str) -> str:
    a, b = rng.sample(ADJECTIVES[field], 2) if rng.random() < 0.3 else (zipf(rng, ADJECTIVES[field]),) * 2
    while b == a:
        b = zipf(rng, ADJECTIVES[field], 0.4)
    people = zipf(rng, PEOPLE, 0.6)
    return zipf(rng, SENTENCES[kind]).format(
        t=topic,
        T=topic[0].upper() + topic[1:],
        n=noun,
        a=a,
        b=b,
        i=zipf(rng, TIPS[field], 0.6),
        g=zipf(rng, GAINS, 0.6),
        p=people,
        P=people.capitalize(),
    )


def _plan(rng: random.Random, field: str, topic: str, length: int) -> list[Plan]:
    nouns, kinds = list(TOPICS[field][topic]), list(KINDS)
    plans = []
    for _ in range(length):
        kind = zipf(rng, kinds, 0.6)
        kinds.remove(kind)
        noun = zipf(rng, nouns, 0.6)
        nouns.remove(noun)
        plans.append(Plan(kind, noun, _sentence(rng, kind, field, topic, noun)))
    return plans


def _think(rng: random.Random, field: str, topic: str, remark: str, free: bool, plans: list[Plan]) -> str:
    nouns = list(TOPICS[field][topic])
    lines = [zipf(rng, OPEN).format(t=topic)]
    if remark:
        lines[0] += f" {remark}"
    if free:
        lines.append(zipf(rng, FREE).format(n=WORDS[len(plans)]))
    shown = rng.sample(nouns, rng.choice((3, 4)))
    listed = "the " + ", the ".join(shown[:-1]) + f" and the {shown[-1]}"
    lines.append(zipf(rng, RECALL).format(l=listed))
    first = plans[0].noun
    if rng.random() < 0.4:
        other = rng.choice([n for n in nouns if n != first])
        doubt = zipf(rng, DOUBT).format(n=first, a=zipf(rng, ADJECTIVES[field]))
        lines.append(f"{zipf(rng, PICK).format(n=other)} {doubt}")
    else:
        lines.append(zipf(rng, PICK).format(n=first))
    order = ", ".join(f"{ORDINALS[i]} {NAMES[p.kind].format(n=p.noun)}" for i, p in enumerate(plans))
    lines.append(f"{order}.")
    if rng.random() < 0.85:
        lines.append(
            zipf(rng, ("Draft: {s}", "I could say: {s}", "Maybe like this: {s}")).format(
                s=" ".join(p.sentence for p in plans[: rng.choice((1, 2, 2, 3))])
            )
        )
    lines.append(zipf(rng, CLOSE))
    return "\n".join(lines)


def chat_prompts(kind: Kind = "standard") -> list[str]:
    """Every distinct prompt of the grammar."""
    templates = ASK[-UNSEEN:] if kind == "wording" else ASK[:-UNSEEN]
    return [
        f"{ask.format(t=topic)} {request[0]}".rstrip()
        for topics in TOPICS.values()
        for topic in topics
        for ask in templates
        for request in REQUESTS
    ]


def chat_sample(rng: random.Random, mode: Mode, held_out: bool, kind: Kind, overlap: float) -> Sample:
    """A chat sample; ``overlap`` is the share of answers without thinking that first say what they will speak of."""
    templates = ASK[-UNSEEN:] if kind == "wording" else ASK[:-UNSEEN]
    while True:
        field = rng.choice(list(TOPICS))
        topic = rng.choice(list(TOPICS[field]))
        request, asked, remark = rng.choice(REQUESTS)
        prompt = f"{rng.choice(templates).format(t=topic)} {request}".rstrip()
        if is_held_out(f"chat/{prompt}") == held_out:
            break
    length = asked or rng.choices((2, 3, 4), (3, 3, 2))[0]
    plans = _plan(rng, field, topic, length)
    body = " ".join(p.sentence for p in plans)
    if rng.random() < 0.35:
        body += f" {zipf(rng, ENDINGS)}"
    thinking = ""
    if mode == "think":
        thinking = _think(rng, field, topic, remark, asked is None, plans)
        answer = f"{zipf(rng, OPENERS)} {body}"
    elif rng.random() < overlap:
        order = ", ".join(f"{ORDINALS[i]} {NAMES[p.kind].format(n=p.noun)}" for i, p in enumerate(plans))
        answer = f"{zipf(rng, OPEN).format(t=topic)} {order}.\n{body}"
    else:
        answer = f"{zipf(rng, OPENERS)} {body}"
    return Sample("chat", mode, field, prompt, thinking, answer, None, held_out, kind)
