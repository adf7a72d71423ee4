from companion.experiments.settling import SETTLING, Settling

SHORT, LONG = SETTLING / 2, 2 * SETTLING


def test_a_kind_counts_when_it_has_run_for_a_while():
    settling = Settling()
    assert [settling.settled("plain", SHORT) for _ in range(4)] == [False, False, True, True]
    assert not settling.settled("draft", LONG), "the first behind a change"
    assert settling.settled("draft", LONG)
    assert not settling.settled("plain", SHORT), "it has to begin anew"
