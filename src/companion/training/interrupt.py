"""Ctrl-C as a question that is answered between two steps, and not in the middle of one."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any


class Interrupt:
    """Catches Ctrl-C: remembers it, and passes it on to ``children``."""

    def __init__(self, children: list[int] | None = None) -> None:
        self.seen, self.children = False, children or []
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        try:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # not the main thread: the caller's own handling applies
            self._previous = None
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        for pid in self.children:
            os.kill(pid, signal.SIGINT)

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
