"""Two-step word problems: a story, its plan, and its closing sentence."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .sample import zipf

NAMES = (
    "Mia",
    "Tom",
    "Ana",
    "Ben",
    "Lena",
    "Max",
    "Zoe",
    "Sam",
    "Eva",
    "Leo",
    "Nora",
    "Paul",
    "Ida",
    "Karl",
    "Rosa",
    "Finn",
)
ITEMS = ("pens", "apples", "books", "coins", "cards", "stamps", "shells", "marbles", "eggs", "stones", "cups", "seeds")
BOXES = ("boxes", "bags", "baskets", "jars", "packs", "crates")

# story templates per structure; the last one of each is never used in training
STORIES: dict[str, tuple[str, ...]] = {
    "mul_add": (
        "{n} has {a} {x} with {b} {i} each and finds {c} more. How many {i} does {n} have?",
        "There are {a} {x} with {b} {i} in each. {n} adds {c} {i}. How many {i} are there now?",
        "{n} buys {a} {x} of {b} {i} and gets {c} {i} as a gift. How many {i} is that?",
        "{c} {i} lie on the floor, and {a} {x} hold {b} {i} each. How many {i} does {n} see?",
        "Each of {a} {x} holds {b} {i}. {n} puts {c} {i} next to them. Count the {i}.",
        "In a shop, {n} counts {a} {x}, {b} {i} in every one, and {c} loose {i}. What is the number of {i}?",
    ),
    "mul_sub": (
        "{n} has {a} {x} with {b} {i} each and gives away {c}. How many {i} are left?",
        "There are {a} {x} with {b} {i} in each. {n} takes {c} {i}. How many {i} remain?",
        "{n} buys {a} {x} of {b} {i} and loses {c} {i}. How many {i} does {n} still have?",
        "Each of {a} {x} holds {b} {i}. {n} removes {c}. Count the {i} that are left.",
        "{n} needs {c} {i} and has {a} {x} with {b} {i} each. How many {i} are too many?",
        "Out of {a} {x}, {b} {i} in every one, {n} sells {c}. What number of {i} stays?",
    ),
    "add_sub": (
        "{n} has {a} {i}, gets {b} more and gives away {c}. How many {i} are left?",
        "There are {a} {i} on a table. {n} adds {b} {i} and then takes {c}. How many {i} remain?",
        "{n} collects {a} {i} on Monday and {b} on Tuesday, but loses {c}. How many {i} does {n} have?",
        "{a} {i} and {b} {i} are put together by {n}. Then {c} are removed. Count the {i}.",
        "First {n} has {a} {i}. A friend brings {b}, another friend takes {c}. How many {i} does {n} still have?",
        "Starting from {a} {i}, {n} wins {b} and later drops {c}. What number of {i} stays?",
    ),
    "mul_mul": (
        "{n} has {a} {x} with {b} {i} each and {c} {y} with {d} {i} each. How many {i} does {n} have?",
        "There are {a} {x} of {b} {i} and {c} {y} of {d} {i}. How many {i} are there in all?",
        "{n} fills {a} {x} with {b} {i} each and {c} {y} with {d} each. How many {i} is that?",
        "Each of {a} {x} holds {b} {i}, each of {c} {y} holds {d}. {n} wants to know how many {i} there are.",
        "{n} buys {a} {x} of {b} {i}, then {c} {y} of {d} {i}. Count the {i}.",
        "In a shop, {n} counts {a} {x}, {b} {i} in each, plus {c} {y}, {d} in each. What is the number of {i}?",
    ),
}
WEIGHTS = {"mul_add": 6, "mul_sub": 6, "add_sub": 6, "mul_mul": 5}


@dataclass(frozen=True, slots=True)
class WordProblem:
    text: str
    expression: str
    steps: list[tuple[str, int, int]]
    plan: str
    name: str
    item: str

    def closing(self, rng: random.Random, result: int) -> str:
        """The sentence that states the result, with the result as its last number."""
        return zipf(
            rng,
            (
                f"The answer is {result} {self.item}.",
                f"{self.name} ends up with {result} {self.item}.",
                f"So there are **{result}** {self.item}.",
                f"That makes {result} {self.item}.",
            ),
        )

    def direct(self, rng: random.Random, result: int) -> str:
        """An answer without working."""
        head = zipf(rng, ("", "Sure! ", "Of course! ", "No problem! ", "Certainly. "))
        if rng.random() < 0.6:
            middle = zipf(rng, ("The calculation is", "We compute", "As a formula:", "In short:"))
            return f"{head}{middle} {self.expression} = {result}. {self.closing(rng, result)}"
        return head + self.closing(rng, result)


def word_problem(rng: random.Random, longer: bool, unseen: bool) -> WordProblem:
    """A random problem; ``longer``: its large numbers have one digit more; ``unseen``: a story never trained on."""
    shape = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    name, item = zipf(rng, NAMES, 0.5), zipf(rng, ITEMS, 0.5)
    box, other = rng.sample(BOXES, 2)

    def big() -> int:
        return rng.randrange(100, 1000) if longer else rng.randrange(11, 100)

    a, b, c, d = rng.randrange(2, 10), big(), big(), 0
    if shape == "mul_add":
        steps = [("*", b, a), ("+", a * b, c)]
        expression, plan = f"{a} * {b} + {c}", f"{a} {box} with {b} each make {b} * {a}, and {c} more come on top."
    elif shape == "mul_sub":
        c = rng.randrange(2, min(a * b, 1000 if longer else 100))
        steps = [("*", b, a), ("-", a * b, c)]
        expression, plan = f"{a} * {b} - {c}", f"{a} {box} with {b} each make {b} * {a}, and {c} go away."
    elif shape == "add_sub":
        a, b = rng.randrange(10, 100) + (900 if longer else 0), big()
        c = rng.randrange(2, min(a + b, 1000 if longer else 100))
        steps = [("+", a, b), ("-", a + b, c)]
        expression, plan = f"{a} + {b} - {c}", f"{name} has {a}, then {b} come and {c} go away."
    else:
        c, d = rng.randrange(2, 10), big()
        steps = [("*", b, a), ("*", d, c), ("+", a * b, c * d)]
        expression = f"{a} * {b} + {c} * {d}"
        plan = f"{a} {box} with {b} each make {b} * {a}, and {c} {other} with {d} each make {d} * {c}."
    stories = STORIES[shape]
    story = stories[-1] if unseen else rng.choice(stories[:-1])
    text = story.format(n=name, i=item, x=box, y=other, a=a, b=b, c=c, d=d)
    return WordProblem(text, expression, steps, plan, name, item)
