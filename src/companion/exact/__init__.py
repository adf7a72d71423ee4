"""The exact law of what the engine emits, on models small enough to walk every branch of every random choice.

To ask whether a policy, a drafter or a rule is lossless without sampling anything: give `companion.exact.laws` tables
of probabilities (`companion.exact.tables`) and compare the engine's law with that of plain sampling. A difference of
one part in a million is seen, which no simulation would see.
"""
