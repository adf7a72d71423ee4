"""For `pytest --nbval`: standard error (bars, warnings of this or that version) is no result and is not compared."""

import pytest


def pytest_collectstart(collector: pytest.Collector) -> None:
    if collector.path.suffix == ".ipynb" and hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
