"""An engine and a server that answer as vLLM 0.32 does, from texts that the tests know."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from vllm_lane.standin import Request, Scheduler, run

from companion.phase.tracker import ThinkTokens
from companion.serving.vllm.rounds import Answer, Counters, Question

TAGS = ThinkTokens(open=1, close=2, turn=3)
PROMPT = (3, 7, 1)
TEXTS = {
    "math/0": [*[8] * 11, 2, *[6] * 14, 0],
    "math/1": [*[8] * 4, 2, *[6] * 9, 0],
    "chat/0": [*[8] * 6, 2, *[6] * 3, 0],
    "chat/1": [2, 6, 0],
    "code/0": [0],  # its first token is its last, so that it has no round
    "code/1": [*[8] * 3, 2, *[6] * 5, 0],
}
QUESTIONS = [Question(name, PROMPT, name.partition("/")[0]) for name in TEXTS]


def answered(name, max_new_tokens, depth=5, scheduler=None):
    """What a vLLM with a drafter that is right about two tokens says to a prompt, with detailed metrics."""
    scheduler = scheduler or Scheduler(vllm_config=SimpleNamespace(depth=depth))
    request = Request(f"cmpl-{name}", PROMPT, TEXTS[name], max_tokens=max_new_tokens, extra={"companion_request": name})
    run(scheduler, [request], depth=depth)
    lists = {key: value for key, value in scheduler.drafted_metrics[request.request_id].items() if value}
    return Answer(tuple(request.output_token_ids), str(request.reason), {"num_spec_tokens": depth, **lists})


class FakeEngine:
    """`Offline` without vLLM; ``stolen`` steps are counted that no answer accounts for."""

    release, max_context = "0.32.0", 4096

    def __init__(self, *, depth=5, scheduler=None, stolen=0):
        self.depth, self.scheduler, self.stolen, self.asked = depth, scheduler, stolen, []
        self.total = Counters()

    def answer(self, questions, sampling, *, seed, max_new_tokens):
        self.asked.append([q.prompt_id for q in questions])
        answers = [answered(q.prompt_id, max_new_tokens, self.depth, self.scheduler) for q in questions]
        for a in answers:
            accepted, drafted = (a.metrics.get(n, []) for n in ("per_step_accepted", "per_step_drafted"))
            self.total = Counters(
                self.total.drafts + len(drafted) + self.stolen,
                self.total.drafted + sum(drafted),
                self.total.accepted + sum(accepted),
            )
        return answers

    def counters(self):
        return self.total


@contextmanager
def serving(*, dies_after=None, release="0.32.0", models=("tiny",), change=None, counts=True):
    """A server on a free port; yields its address and the bodies that it was asked. ``dies_after`` that many answers it
    hangs up on whoever asks, ``change`` edits a completion before it goes out."""
    engine, lock, bodies = FakeEngine(), threading.Lock(), []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def _send(self, text, status=200):
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            if self.path == "/version":
                return self._send(json.dumps({"version": release}))
            if self.path == "/v1/models":
                return self._send(json.dumps({"data": [{"id": m, "max_model_len": 4096} for m in models]}))
            names = {"num_drafts": "drafts", "num_draft_tokens": "drafted", "num_accepted_tokens": "accepted"}
            with lock:
                lines = [
                    f'vllm:spec_decode_{name}_total{{engine="0",model_name="tiny"}} {float(getattr(engine.total, own))}'
                    for name, own in names.items()
                ]
            first = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {len(bodies)}.0'
            noise = [first, "up 1.0"]
            return self._send("\n".join([*(lines if counts else []), *noise]) + "\n")

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                bodies.append(body)
                if dies_after is not None and len(bodies) > dies_after:
                    self.connection.close()
                    return None
                name = body["vllm_xargs"]["companion_request"]
                (answer,) = engine.answer(
                    [Question(name, tuple(body["prompt"]))], None, seed=body["seed"], max_new_tokens=body["max_tokens"]
                )
            choice = {"index": 0, "token_ids": list(answer.tokens), "finish_reason": answer.finish_reason}
            record = {"choices": [choice], "metrics": {"speculative_decoding": dict(answer.metrics)}}
            if change is not None:
                record = change(record)
            if "error" in record:
                return self._send(json.dumps(record), record["error"])
            return self._send(json.dumps(record))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
