"""For `pytest --nbval`: standard error (bars, warnings) is no result."""

import pytest


def pytest_collectstart(collector: pytest.Collector) -> None:
    if collector.path.suffix == ".ipynb" and hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
