"""Settings that every test shares, and the options that choose how much runs."""

import os

import pytest
import torch
from hypothesis import settings

# A loaded two-core machine stretches single examples past any deadline; the whole run has its own time limit. The
# everyday run draws the same examples every time, so that it fails for a change and not by chance; --full draws more.
settings.register_profile("companion", deadline=None, derandomize=True)
settings.register_profile("full", deadline=None, max_examples=1000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long grids as well (make test-full)")
    parser.addoption("--book", action="store_true", help="look at the pages in build/html (after make book)")
    parser.addoption("--browser", action="store_true", help="read those pages in a browser (make test-browser)")
    parser.addoption("--interpreter", action="store_true", help="run the kernels' tests, under Triton's interpreter")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "companion")
    torch.set_num_threads(1)  # two workers on two cores, and the same sums in the same order everywhere
    os.environ.setdefault("TQDM_DISABLE", "1")
    # decides what Triton's decorator makes for good, once per process: so these tests have a process of their own
    os.environ.pop("TRITON_INTERPRET", None)
    if config.getoption("--interpreter"):
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for: deselected, as -m would, and so counted in pytest's last line."""
    asked = {name: config.getoption(f"--{name}") for name in ("full", "book", "browser", "interpreter")}
    kept, left_out = [], []
    for item in items:
        unwanted = any(name in item.keywords and not wanted for name, wanted in asked.items())
        elsewhere = asked["interpreter"] and "interpreter" not in item.keywords
        (left_out if unwanted or elsewhere else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
