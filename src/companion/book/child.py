"""The process that executes one notebook. A script that imports nothing of ours, so that it starts at once.

It reads its order as JSON from standard input: source, output, cwd, parameters, sockets, timeout, progress.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys

# for the kernel, and for what it imports
KERNEL = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "JUPYTER_PREFER_ENV_PATH": "1",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's, about a bar that is off
}


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # nbclient takes over while a kernel runs, and ends it
    order = json.load(sys.stdin)
    import papermill
    import tqdm.auto  # noqa: F401 - reads its environment now: only the kernel's bars are to be off
    from traitlets.config import Config

    os.environ.update(KERNEL)
    try:
        papermill.execute_notebook(
            order["source"],
            order["output"],
            parameters=order["parameters"],
            kernel_name="python3",
            cwd=order["cwd"],
            execution_timeout=order["timeout"],
            progress_bar=order["progress"],
            # two kernels that start together may pick the same TCP port
            config=Config(KernelManager={"transport": "ipc", "ip": order["sockets"]}),
            extra_arguments=["--IPKernelApp.log_level=CRITICAL"],  # its warning about TCP is printed on every start
        )
    except papermill.PapermillExecutionError as error:
        trace = "\n".join(error.traceback)
        print(trace if sys.stderr.isatty() else re.sub(r"\x1b\[[0-9;]*m", "", trace), file=sys.stderr)
        return 1
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
