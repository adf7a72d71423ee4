"""vLLM's schedulers with our depth policy per request and step, and a file of rounds. Only vLLM imports this.

    vllm serve Qwen/Qwen3-4B --speculative-config '{...}' \\
      --scheduler-cls companion.serving.vllm_scheduler.AsyncPolicyScheduler \\
      --additional-config "$(companion vllm options --target Qwen/Qwen3-4B --policy '{"think": 2, "output": 7}')"

`AsyncPolicyScheduler` for vLLM's default on a GPU, `PolicyScheduler` where asynchronous scheduling is off (vLLM
switches it off for a class that does not inherit from its asynchronous one). What is decided, and from what, is in
`companion.serving.vllm.steering`; what may be said in the table, in `companion.serving.vllm.options`.
"""

from __future__ import annotations

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from companion.serving.vllm.mixin import PolicyMixin
from companion.serving.vllm.release import check_hooks

for _base in (Scheduler, AsyncScheduler):
    check_hooks(_base)


class PolicyScheduler(PolicyMixin, Scheduler):
    release, asynchronous = vllm.__version__, False


class AsyncPolicyScheduler(PolicyMixin, AsyncScheduler):
    release, asynchronous = vllm.__version__, True
