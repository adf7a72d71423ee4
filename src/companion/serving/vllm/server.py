"""An OpenAI-compatible vLLM server, asked with token ids and answering with them.

Every sampling parameter is sent: a server fills in what is missing from the model's generation_config.json, and a run
would be at another temperature than its record says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from companion.protocols import Sampling
from companion.serving.vllm.options import NAME_ARGUMENT
from companion.serving.vllm.rounds import Answer, Counters, Question

COUNTERS = {"drafts": "num_drafts", "drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}


class Gone(OSError):
    """The server does not answer any more: what it was in the middle of is lost."""


class Server:
    """``url`` up to the port; ``model`` None takes the only one that is served. ValueError where there is no vLLM."""

    def __init__(self, url: str, model: str | None = None, *, concurrency: int = 8, timeout: float = 600.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a server's address begins with http:// or https://, got {url!r}")
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.url, self.concurrency, self.timeout = url.rstrip("/").removesuffix("/v1"), concurrency, timeout
        try:
            self.release = str(self._json("/version").get("version", ""))
            served = {entry["id"]: entry for entry in self._json("/v1/models")["data"]}
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"there is no vLLM server at {self.url} ({_reason(error)}); start one, or name its address"
            ) from error
        if model is None and len(served) != 1:
            raise ValueError(f"{self.url} serves {', '.join(served) or 'nothing'}; say which (--served-model)")
        self.model = model or next(iter(served))
        if self.model not in served:
            raise ValueError(f"{self.url} serves {', '.join(served)} and no {self.model}")
        self.max_context: int | None = served[self.model].get("max_model_len")

    def answer(
        self, questions: Sequence[Question], sampling: Sampling, *, seed: int, max_new_tokens: int
    ) -> list[Answer]:
        """All answers, ``concurrency`` at once. `Gone` when the server stops, ValueError for what it refuses."""
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(lambda q: self._answer(q, sampling, seed, max_new_tokens), questions))

    def counters(self) -> Counters:
        """The engine's counts so far, all engines behind the server together."""
        text = self._read(Request(f"{self.url}/metrics")).decode()
        found = {}
        for name, suffix in COUNTERS.items():
            lines = re.findall(rf"^vllm:spec_decode_{suffix}(?:_total)?(?:\{{[^\n]*\}})? (\S+)$", text, re.MULTILINE)
            if not lines:
                raise ValueError(
                    f"{self.url}/metrics counts no speculation: start the server with --speculative-config and without "
                    "--disable-log-stats"
                )
            found[name] = round(sum(map(float, lines)))
        return Counters(**found)

    def _answer(self, question: Question, sampling: Sampling, seed: int, max_new_tokens: int) -> Answer:
        body = {
            "model": self.model,
            "prompt": list(question.tokens),
            "max_tokens": max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "vllm_xargs": {NAME_ARGUMENT: question.prompt_id},
        }
        record = self._json("/v1/completions", body)
        try:
            (choice,) = record["choices"]
            tokens = choice["token_ids"]
            if not isinstance(tokens, list):
                raise TypeError("no token ids")
            metrics = (record.get("metrics") or {}).get("speculative_decoding")
            return Answer(tuple(tokens), choice["finish_reason"], metrics)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.url} answered {question.prompt_id} without what a measurement needs ({error}): choices with "
                "token_ids and finish_reason; is it a vLLM server, and of a release that knows return_token_ids?"
            ) from error

    def _json(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        record = json.loads(self._read(Request(self.url + path, data, {"Content-Type": "application/json"})))
        if not isinstance(record, dict):
            raise ValueError(f"{self.url}{path} gave no JSON object")
        return record

    def _read(self, request: Request) -> bytes:
        try:
            with urlopen(request, timeout=self.timeout) as response:
                content: bytes = response.read()
                return content
        except HTTPError as error:  # it is there and says no
            said = " ".join(error.read().decode(errors="replace").split())[:300]
            if error.code >= 500:
                raise Gone(f"status {error.code}: {said}") from error
            raise ValueError(f"{request.full_url} refused the request, status {error.code}: {said}") from error
        except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
            raise Gone(_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__
