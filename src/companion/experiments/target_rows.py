"""What is kept of one evaluated response."""

from __future__ import annotations

from pydantic import BaseModel

from companion.training.corpus import Domain, Kind, Mode


class Response(BaseModel):
    """What became of one held-out prompt; entropies (nats, temperature 1) only where they are reported."""

    index: int
    temperature: float
    domain: Domain
    mode: Mode
    kind: Kind
    family: str
    right: bool | None  # None: chat has no checkable answer
    span_ok: bool  # thinking on: opened first and closed once; off: no think token at all
    ended: bool  # by its own stop token
    tokens: int
    think_tokens: int  # with both tags
    entropy_think: list[float] = []
    entropy_output: list[float] = []

    @property
    def cell(self) -> tuple[float, Domain, Mode, Kind]:
        return self.temperature, self.domain, self.mode, self.kind
