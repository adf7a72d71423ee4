"""vLLM's scheduler, worker and requests as far as ours touches them: the same names, fields and order of calls.

`Scheduler` and `AsyncScheduler` follow vLLM 0.32 in what matters: drafts are taken from a request when a step is put
together, the asynchronous one hands every request the same list of placeholders and runs one step ahead, sampled
tokens are trimmed in place at a stop, ended requests leave ``requests``. `run` is the engine's loop around a target
whose text is known and a drafter that is right about some of it.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

STOP = 0


class Reason(SimpleNamespace):
    def __str__(self):
        return self.name


class Request:
    def __init__(self, name, prompt, text, *, max_tokens=100, extra=None, temperature=0.0, top_k=0):
        self.request_id, self.prompt_token_ids, self.text = name, list(prompt), list(text)
        self.max_tokens = max_tokens
        self.sampling_params = SimpleNamespace(
            temperature=temperature, top_k=top_k, top_p=1.0, min_p=0.0, extra_args=extra
        )
        self.output_token_ids, self.spec_token_ids, self.reason = [], [], None
        self.in_flight = 0  # of num_output_placeholders only that it is not 0 matters here
        self.read = False  # the prompt, by a step that has been put together

    def is_finished(self):
        return self.reason is not None

    def get_finished_reason(self):
        return self.reason


class Scheduler:
    asynchronous = False

    def __init__(self, *, vllm_config):
        self.requests, self.num_spec_tokens = {}, vllm_config.depth
        self.finished_req_ids = set()
        self.drafted_metrics = {}

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.drafted_metrics[request.request_id] = {"per_step_accepted": [], "per_step_drafted": []}

    def schedule(self):
        ready = [r for r in self.requests.values() if self.asynchronous or not r.in_flight]
        drafts = {r.request_id: r.spec_token_ids for r in ready if r.spec_token_ids}
        output = SimpleNamespace(
            num_scheduled_tokens={r.request_id: 1 + len(drafts.get(r.request_id, ())) for r in ready},
            scheduled_spec_decode_tokens=drafts,
            finished_req_ids=self.finished_req_ids,
        )
        for request in ready:
            request.spec_token_ids = []
        self.finished_req_ids = set()
        self._update_after_schedule(output)
        return output

    def _update_after_schedule(self, scheduler_output):
        for name in scheduler_output.num_scheduled_tokens:
            self.requests[name].in_flight += 1
            self.requests[name].read = True

    def update_draft_token_ids(self, draft_token_ids):
        for name, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
            if name in self.requests:
                self.requests[name].spec_token_ids = tokens

    def update_from_output(self, scheduler_output, model_runner_output):
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None:
                continue
            request.in_flight -= 1
            tokens = model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[name]]
            drafted = len(scheduler_output.scheduled_spec_decode_tokens.get(name, ()))
            if drafted:
                self.drafted_metrics[name]["per_step_accepted"].append(len(tokens) - 1)
                self.drafted_metrics[name]["per_step_drafted"].append(drafted)
            for count, token in enumerate(tokens, start=1):
                request.output_token_ids.append(token)
                if token == STOP:
                    request.reason = Reason(name="stop")
                elif len(request.output_token_ids) == request.max_tokens:
                    request.reason = Reason(name="length")
                if request.is_finished():
                    del tokens[count:]
                    del self.requests[name]
                    self.finished_req_ids.add(name)
                    break
        return {"outputs": True}


class AsyncScheduler(Scheduler):
    asynchronous = True

    def _update_after_schedule(self, scheduler_output):
        super()._update_after_schedule(scheduler_output)
        self.placeholders = [-1] * self.num_spec_tokens  # one list for all
        for name in scheduler_output.num_scheduled_tokens:
            self.requests[name].spec_token_ids = self.placeholders


class Worker:
    """Says the text of each request; a draft is right up to ``right`` tokens, then wrong."""

    def __init__(self, depth, right):
        self.depth, self.right, self.said, self.verified = depth, right, {}, {}

    def step(self, output, requests):
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = requests[name]
            at = self.said.setdefault(name, 0)
            length = len(output.scheduled_spec_decode_tokens.get(name, ()))
            self.verified.setdefault(name, []).append(length)
            made = min(self.right(request, at), length) + 1
            text = request.text[at : at + made]
            text += [9] * (made - len(text))  # a model goes on behind its stop token, inside one step
            self.said[name] = at + made
            sampled.append(text)
        return SimpleNamespace(req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=sampled)

    def drafts(self, output):
        names = list(output.num_scheduled_tokens)
        return SimpleNamespace(req_ids=names, draft_token_ids=[[5] * self.depth for _ in names])


def config(depth, options, **changes):
    parts = {
        "depth": depth,
        "additional_config": options,
        "model_config": SimpleNamespace(get_vocab_size=lambda: 1024),
        "scheduler_config": SimpleNamespace(async_scheduling=False),
        "parallel_config": SimpleNamespace(data_parallel_size=1, rank=0),
    }
    return SimpleNamespace(**(parts | changes))


def run(scheduler, requests, *, depth, right=lambda request, at: 2):
    """The engine's loop, asynchronous with one step ahead; returns the worker."""
    worker, everyone = Worker(depth, right), {r.request_id: r for r in requests}
    for request in requests:
        scheduler.add_request(request)
    running = deque()
    for _ in range(1000):
        if scheduler.requests:
            output = scheduler.schedule()
            running.append((output, worker.step(output, everyone)))
        if running and (not scheduler.asynchronous or len(running) > 1 or not scheduler.requests):
            output, result = running.popleft()
            scheduler.update_from_output(output, result)
            if not scheduler.asynchronous:
                scheduler.update_draft_token_ids(worker.drafts(output))
        if not scheduler.requests and not running:
            return worker
    raise AssertionError("the stand-in's engine did not end")
