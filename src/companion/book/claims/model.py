"""One row of the claims table, and the files that hold the rows."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

KINDS = {
    "exact": "reproduced exactly",
    "tiny": "reproduced in kind on tiny-qwen3",
    "gpu": "needs a GPU and weights",
    "never": "cannot be reproduced",
    "outside": "out of scope",
}
OUTCOMES = {
    "agrees": "as stated",
    "partly": "in part",
    "differs": "not here",
    "slip": "the text slips",
    "answered": "answered",
}
Kind = Literal["exact", "tiny", "gpu", "never", "outside"]
Outcome = Literal["agrees", "partly", "differs", "slip", "answered"]
M = TypeVar("M", bound=BaseModel)


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Number(_Row):
    """A number of a row, from a stored result (``result``, ``path``) or from a function (``call``, ``args``).

    ``path`` is a chain like ``cells[domain=all, seed=null].tau``: fields, and entries of a list by what they say or by
    their index. ``low`` and ``high`` name fields beside the last one. What is shown is ``scale`` times the value plus
    ``offset``, formatted by ``show``. Without ``holds`` it must equal ``stated`` to the digits that are stated there.
    """

    of: str = ""
    stated: str | None = None
    unit: str = ""
    result: str | None = None
    path: str | None = None
    low: str | None = None
    high: str | None = None
    call: str | None = None
    args: tuple[str | int | float, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    show: str = "{:.2f}"
    holds: tuple[str, ...] = ()
    printed: bool = True  # whether the chapter's stored outputs hold it in this form

    @model_validator(mode="after")
    def _one_source(self) -> Number:
        if (self.call is None) == (self.result is None) or (self.result is None) != (self.path is None):
            raise ValueError(f"number {self.of!r} needs either call, or result and path")
        if (self.low is None) != (self.high is None) or (self.low is not None and self.call is not None):
            raise ValueError(f"number {self.of!r}: low and high come together, and from a result")
        if self.stated is None and not self.holds:
            raise ValueError(f"number {self.of!r} states nothing that could be checked: give stated, or holds")
        return self


class Claim(_Row):
    """Who says what and where, and what became of it.

    ``at`` is ``chapter#anchor``, or ``chapter`` for a whole page; ``later`` names an entry of ``not_yet.toml`` instead.
    ``here`` says in words what was found (numbers stand in ``numbers``), ``why`` what keeps it from being reproduced.
    """

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    where: str
    says: str
    kind: Kind
    outcome: Outcome | None = None
    here: str = ""
    why: str = ""
    command: str = ""
    at: str | None = None
    later: str | None = None
    numbers: tuple[Number, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        if self.at is not None and self.later is not None:
            raise ValueError(f"{self.id}: a row is in the book (at) or not yet (later), not both")
        if self.kind in ("exact", "tiny"):
            if (self.at is None) == (self.later is None):
                raise ValueError(f"{self.id}: a reproduced claim needs at or later")
            if (self.outcome is None) != (self.at is None):
                raise ValueError(f"{self.id}: an outcome comes with the chapter that shows it")
        elif self.outcome is not None and not self.numbers:
            raise ValueError(f"{self.id}: nothing was reproduced that could have an outcome")
        if self.kind == "gpu" and not self.command:
            raise ValueError(f"{self.id}: a claim that needs a GPU needs its command")
        if self.kind in ("never", "outside") and not self.why:
            raise ValueError(f"{self.id}: say why")
        return self


class Text(_Row):
    """One of the texts and its rows, in the order of the text; ``part`` names the headings between them."""

    order: int
    title: str
    cite: str = ""  # key in references.bib
    about: str
    parts: dict[str, tuple[Claim, ...]]

    @property
    def claims(self) -> list[Claim]:
        return [claim for part in self.parts.values() for claim in part]


class Planned(_Row):
    title: str
    file: str | None = None  # a pattern for its name in notebooks/; None for a paragraph in a chapter that is there


class NotYet(_Row):
    """Chapters that rows wait for. An entry leaves the list when its chapter comes."""

    chapters: dict[str, Planned]


class Claims(_Row):
    texts: dict[str, Text]
    not_yet: dict[str, Planned]
    findings: Text  # what this book adds to the texts, in rows of the same form

    @property
    def rows(self) -> list[Claim]:
        return [claim for text in self.texts.values() for claim in text.claims]

    @property
    def checked(self) -> list[Claim]:
        """The rows of the texts and the findings."""
        return [*self.rows, *self.findings.claims]


def read_claims(folder: Path) -> Claims:
    """All of ``book/claims``. ValueError for a file that is no list of claims, and for an id that is given twice."""
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not {"not_yet", "findings"} < set(files):
        raise ValueError(f"{folder} holds no claims; expected not_yet.toml, findings.toml and one file for each text")
    not_yet, findings = _read(files.pop("not_yet"), NotYet), _read(files.pop("findings"), Text)
    found = [(name, _read(path, Text)) for name, path in files.items()]
    texts = dict(sorted(found, key=lambda named: named[1].order))
    claims = Claims(texts=texts, not_yet=not_yet.chapters, findings=findings)
    ids = [claim.id for claim in claims.checked]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"{folder}: ids that stand twice: {', '.join(twice)}; give each claim its own")
    return claims


def _read(path: Path, model: type[M]) -> M:
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}, {where}: {first['msg']}") from error
