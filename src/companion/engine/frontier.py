"""The engine's `Frontier`: drafted slots, each revealed only after the one before it was admitted for good."""

from __future__ import annotations

from collections.abc import Sequence

from companion.protocols import Draft, Policy, RequestView
from companion.scheduling.retrospective import Retrospective


class DraftFrontier:
    def __init__(self, requests: Sequence[RequestView], drafts: Sequence[Draft]) -> None:
        self._requests = requests
        self.__drafts = drafts  # name-mangled, as the lengths are: a policy that cheats has to say so
        self.__drafted = [len(draft.tokens) for draft in drafts]
        self.__lengths = [0] * len(drafts)

    @property
    def requests(self) -> Sequence[RequestView]:
        return self._requests

    def drafted(self, row: int) -> int:
        return min(self.__lengths[row] + 1, self.__drafted[row])

    def admitted(self, row: int) -> int:
        return self.__lengths[row]

    def confidence(self, row: int) -> float | None:
        draft, k = self.__drafts[row], self.__lengths[row]
        return draft.confidence[k] if draft.confidence is not None and k < self.__drafted[row] else None

    def revealed(self, row: int) -> Sequence[int]:
        return self.__drafts[row].tokens[: self.__lengths[row]]

    def admit(self, row: int) -> None:
        if self.__lengths[row] == self.__drafted[row]:
            raise IndexError(f"request {self.requests[row].request} has no drafted slot left to admit")
        self.__lengths[row] += 1


def verification_lengths(
    policy: Policy | Retrospective, requests: Sequence[RequestView], drafts: Sequence[Draft]
) -> list[int]:
    """How many tokens of each draft the policy admits."""
    if isinstance(policy, Retrospective):
        return policy.lengths(drafts)
    frontier = DraftFrontier(requests, drafts)
    policy.admit(frontier)
    return [frontier.admitted(row) for row in range(len(drafts))]
