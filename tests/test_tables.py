import pytest

from companion.tables import table


def test_a_table_is_markdown():
    shown = table(["rule", "A"], [("the rule", 0.7), ("a|b", "⟨0.64⟩")])
    assert shown.data.splitlines() == ["| rule | A |", "| :-- | --: |", "| the rule | 0.7 |", "| a\\|b | ⟨0.64⟩ |"]


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="2 columns"):
        table(["a", "b"], [(1,)])
    with pytest.raises(ValueError, match="2 columns"):
        table(["a", "b"], [(1, 2)], align="l")
