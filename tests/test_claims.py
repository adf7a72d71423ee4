"""The claims table: each link leads somewhere, each number is what its row says, and planted mistakes are found."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from companion.book.claims import Claims, claims_tables, problems, read_claims, value_of
from companion.book.claims.links import anchors
from companion.book.claims.model import Claim, Number
from companion.book.claims.values import find
from companion.cli import app

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "book" / "claims"
CLAIMS = read_claims(FOLDER)
AWAITED = next(iter(CLAIMS.not_yet))  # some chapter that is still to come


def test_every_link_leads_somewhere_and_every_number_is_what_its_row_says() -> None:
    assert problems(CLAIMS, ROOT) == []
    assert sum(len(claim.numbers) for claim in CLAIMS.rows) > 150
    assert sum(claim.at is not None for claim in CLAIMS.rows) > 120


# ---- nothing is left out


NUMBERED = {
    "note": ["Prop. 1", "Cor. 2", "Prop. 3", "Prop. 4", "Cor. 5", "H1", "H2", *(f"Section {k}" for k in range(2, 9))],
    "paper": [
        *(f"Eq. {k}" for k in range(1, 13)),
        *(f"Figure {k}" for k in range(2, 9)),
        *("Table 1", "Algorithm 1", "Appendix A", "Section 5.1", "Section 5.2", "Section 5.3"),
    ],
    "introduction": [*(f"Part {k}" for k in range(1, 10)), *(f"A{k}" for k in range(1, 7))],
    "review": ["Eq. 1", "Eq. 8a to 8c", "Eq. 15", "Eq. 16", "Lemmas 1 and 2", "Two requests", "Three requests"],
}


@pytest.mark.parametrize(("text", "wanted"), NUMBERED.items())
def test_every_numbered_thing_of_a_text_has_a_row(text: str, wanted: list[str]) -> None:
    places = [_spelled_out(claim.where) for claim in CLAIMS.texts[text].claims]
    missing = [name for name in wanted if not any(re.search(rf"\b{re.escape(name)}(?!\d)", place) for place in places)]
    assert missing == []


def _spelled_out(where: str) -> str:
    """ "Eq. 9 to 12" also names Eq. 10, "Parts 8, 9" also Part 9, and a range of sections each of them."""

    def spell(match: re.Match[str]) -> str:
        word, numbers = match[1].removesuffix("s"), [int(n) for n in re.findall(r"\d+", match[2])]
        listed = range(numbers[0], numbers[-1] + 1) if " to " in match[2] else numbers
        return match[0] + "; " + "; ".join(f"{word} {n}" for n in listed)

    return re.sub(r"(Eq\.|Sections|Parts) (\d+(?:(?:, | to | and )\d+)+)", spell, where)


def test_the_texts_of_the_book_have_their_rows_and_every_kind_occurs() -> None:
    assert list(CLAIMS.texts) == ["note", "paper", "introduction", "review"]
    assert {claim.kind for claim in CLAIMS.rows} == {"exact", "tiny", "gpu", "never", "outside"}
    assert {claim.outcome for claim in CLAIMS.rows} == {"agrees", "partly", "differs", "slip", "answered", None}


# ---- planted mistakes


def changed(claims: Claims, name: str, **fields: Any) -> Claims:
    """The same rows, one of them with other fields."""
    texts = {}
    for key, text in claims.texts.items():
        parts = {
            part: tuple(claim.model_copy(update=fields) if claim.id == name else claim for claim in rows)
            for part, rows in text.parts.items()
        }
        texts[key] = text.model_copy(update={"parts": parts})
    return claims.model_copy(update={"texts": texts})


def row(name: str) -> Claim:
    return next(claim for claim in CLAIMS.rows if claim.id == name)


def with_number(name: str, index: int = 0, **fields: Any) -> Claims:
    numbers = list(row(name).numbers)
    numbers[index] = numbers[index].model_copy(update=fields)
    return changed(CLAIMS, name, numbers=tuple(numbers))


PLANTED: dict[str, tuple[Callable[[], Claims], str]] = {
    "an anchor with a typo": (
        lambda: changed(CLAIMS, "note-prop-1", at="03_eat_is_an_acceptance_rate#prop-point-mas"),
        "note-prop-1: 03_eat_is_an_acceptance_rate has no anchor prop-point-mas",
    ),
    "a chapter that is not there": (
        lambda: changed(CLAIMS, "note-prop-1", at="03_eat#prop-point-mass"),
        "note-prop-1: it points to 03_eat, which is no chapter",
    ),
    "a number with two digits turned round": (
        lambda: with_number("note-table", 4, stated="0.3845"),
        "note-table, at 8: it is 0.385362 now, and the text says 0.3845: equal does not hold",
    ),
    "a stated gain off by one in its last digit": (
        lambda: with_number("paper-gains", 0, stated="31.0"),
        "paper-gains, 4B over Eagle3: it is 30.89 now, and the text says 31.0",
    ),
    "a slip that is none": (
        lambda: with_number("review-57-percent", stated="36", holds=("apart",)),
        "review-57-percent, less time: it is 36 now, and the text says 36: apart does not hold",
    ),
    "another entry of a result": (
        lambda: with_number("paper-over-eagle-tiny", path="differences[first=dspark, second=dflash, temperature=1, "
                            "domain=all, mode=no_think].ratio"),
        "paper-over-eagle-tiny, tiny-qwen3: it is +29.8 [+18.5, +43.3] now: high < 0 does not hold",
    ),
    "a path that leads nowhere": (
        lambda: with_number("paper-over-eagle-tiny", path="differences[first=dspark].ratio"),
        "paper-over-eagle-tiny, tiny-qwen3: 'differences[first=dspark].ratio' leads nowhere",
    ),
    "a function that is not there": (
        lambda: with_number("review-eq-15", call="loop_gflops"),
        "review-eq-15, a round: there is no function loop_gflops",
    ),
    "a number that the chapter does not print": (
        lambda: with_number("review-eq-15", show="{:.4f}"),
        "review-eq-15, a round: 0.3277 is not printed in the chapter",
    ),
    "a chapter to come that is not on the list": (
        lambda: changed(CLAIMS, "paper-figure-3", later="depth"),
        "paper-figure-3: it waits for depth, which not_yet.toml does not list",
    ),
    "a chapter on the list that has come": (
        lambda: CLAIMS.model_copy(
            update={"not_yet": CLAIMS.not_yet | {AWAITED: CLAIMS.not_yet[AWAITED].model_copy(update={"file": "13_*"})}}
        ),
        f"not_yet.toml lists {AWAITED}, and 13_what_a_round_costs is in the book; give its rows their anchors",
    ),
    "a chapter on the list that no row waits for": (
        lambda: CLAIMS.model_copy(update={"not_yet": CLAIMS.not_yet | {"spare": CLAIMS.not_yet[AWAITED]}}),
        "not_yet.toml lists spare, and no row waits for it",
    ),
    "a condition that is none": (
        lambda: with_number("review-eq-15", holds=("about right",)),
        "review-eq-15, a round: 'about right' is no condition",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found_and_nothing_else(mistake: str) -> None:
    plant, complaint = PLANTED[mistake]
    (found,) = problems(plant(), ROOT)
    assert found.startswith(complaint)


def test_a_stored_result_that_changed_is_found_and_not_printed(tmp_path: Path) -> None:
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    results = tmp_path / "data" / "results"
    results.mkdir(parents=True)
    for path in (ROOT / "data" / "results").glob("*.json*"):
        shutil.copy(path, results)
    assert problems(CLAIMS, tmp_path) == []
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "data", other / "data")
    (other / "notebooks").symlink_to(ROOT / "notebooks")
    path = other / "data" / "results" / "suffix_decay.json"
    record = json.loads(path.read_text())
    fall = find(record, "falls[drafter=eagle3, temperature=1, domain=chat, mode=no_think]")
    fall["sampled"], fall["sampled_high"] = 0.04, 0.09
    path.write_text(json.dumps(record))
    found = problems(CLAIMS, other)
    assert {line.split(":")[0] for line in found} == {"paper-figure-2-eagle, Eagle3"}
    assert found[0].endswith("it is +0.040 [-0.108, +0.090] now: high < 0 does not hold")
    assert found[-1].endswith("[-0.108, +0.090] is not printed in the chapter that the row points to")
    with pytest.raises(ValueError, match=r"paper-figure-2-eagle: Eagle3 is .* and high < 0 does not hold"):
        claims_tables(CLAIMS, other)


# ---- paths, anchors, rows


RECORD = {"rows": [{"k": 1, "t": "1", "x": 5, "of": None}, {"k": 2, "t": "a, b", "x": [6, 7]}], "by": {"a b": {"y": 3}}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rows[k=2].x[1]", 7),
        ("rows[t=a, b, k=2].x[0]", 6),
        ("rows[t=1].x", 5),
        ("rows[0].of", None),
        ("by[a b].y", 3),
    ],
)
def test_a_path_finds_its_value(path: str, value: object) -> None:
    assert find(RECORD, path) == value


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("rows[k=3].x", "0 entries fit"),
        ("rows[x=5, k=1].z", "leads nowhere at 'z'"),
        ("rows[7].x", "leads nowhere"),
        ("rows{0}", "cannot be read from '{0}' on"),
        ("rows[kk=1].x", "leads nowhere"),
    ],
)
def test_a_path_that_leads_nowhere_says_where(path: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        find(RECORD, path)


def test_a_number_has_to_be_one() -> None:
    number = Number(of="x", result="calibration.json.gz", path="verdict", stated="1")
    with pytest.raises(ValueError, match="leads to str, not to a number"):
        value_of(number, ROOT / "data" / "results")


def test_anchors_are_those_of_headings_and_labels() -> None:
    found = anchors(ROOT / "notebooks" / "08_bytes_not_flops.ipynb")
    assert found["so-why-does-the-paper-measure-0-6"] == "So why does the paper measure 0.6 %?"
    assert found["ex-batch"] == "What could be wrong"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('kind = "exakt"', "Input should be 'exact'"),
        ('kind = "exact"', "a: a reproduced claim needs at or later"),
        ('kind = "exact"\nat = "x"\nlater = "y"', "in the book (at) or not yet (later), not both"),
        ('kind = "tiny"\nat = "x"', "a: an outcome comes with the chapter that shows it"),
        ('kind = "gpu"', "a: a claim that needs a GPU needs its command"),
        ('kind = "never"', "a: say why"),
        ('kind = "never"\nwhy = "x"\nanchor = "y"', "Extra inputs are not permitted"),
        ('kind = "never"\nwhy = "x"\nnumbers = [{ stated = "1" }]', "needs either call, or result and path"),
        ('kind = "never"\nwhy = "x"\nnumbers = [{ call = "tau" }]', "states nothing that could be checked"),
        ('kind = "never"\nwhy = "x', "is no TOML"),
    ],
)
def test_a_row_that_is_not_whole_is_refused_with_its_place(line: str, complaint: str, tmp_path: Path) -> None:
    for name in ("not_yet", "findings"):
        shutil.copy(FOLDER / f"{name}.toml", tmp_path)
    head = 'order = 1\ntitle = "t"\ncite = "note"\nabout = "a"\n[[parts.p]]\nid = "a"\nwhere = "w"\nsays = "s"\n'
    (tmp_path / "text.toml").write_text(head + line + "\n")
    with pytest.raises(ValueError, match=re.escape(complaint)) as error:
        read_claims(tmp_path)
    assert str(tmp_path / "text.toml") in str(error.value)


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    for name in ("not_yet", "findings"):
        shutil.copy(FOLDER / f"{name}.toml", tmp_path)
    for name in ("one", "two"):
        shutil.copy(FOLDER / "note.toml", tmp_path / f"{name}.toml")
    with pytest.raises(ValueError, match="ids that stand twice: note-"):
        read_claims(tmp_path)
    with pytest.raises(ValueError, match="holds no claims"):
        read_claims(tmp_path / "nowhere")


# ---- what a reader gets


def test_the_page_holds_every_row_once_and_counts_them() -> None:
    pieces = claims_tables(CLAIMS, ROOT)
    whole = "\n".join(piece for name, piece in pieces.items() if name not in ("claims-slips", "claims-findings"))
    assert [claim.id for claim in CLAIMS.rows if whole.count(f'<a id="{claim.id}"></a>') != 1] == []
    assert (
        f"| all | {' | '.join(str(len(text.claims)) for text in CLAIMS.texts.values())} | {len(CLAIMS.rows)} |" in whole
    )
    pages = "\n".join((ROOT / "book" / f"{n}.md").read_text(encoding="utf-8") for n in ("claims", "slips", "findings"))
    assert {f"generated/{name}.md" for name in pieces} == set(re.findall(r"generated/\S+\.md", pages))
    for name, own in (
        ("claims-slips", [c.id for c in CLAIMS.rows if c.outcome == "slip"]),
        ("claims-findings", [c.id for c in CLAIMS.findings.claims]),
    ):
        assert re.findall(r'<a id="(\S+)"></a>', pieces[name]) == own
    assert "text 0.3854, here **0.385362**" in pieces["claims-note"]
    assert 'href="notebooks/09_table_one.html#which-average"' in pieces["claims-paper"]


NAMES = re.compile(
    r"tiny-qwen3|Qwen3(?:-\d+B)?|Eagle3|Gemma4-12B|H200|bf16|L1|Table \d|Figures? \d(?: and \d)?|Eq\. \d+|Algorithm \d"
    r"|[Pp]osition \d(?: minus (?:position )?\d)?|(?:depth|temperature) \d|\d+ users|tiles of \d+ tokens"
    r"|\$[^$]*\$|`[^`]*`"
)


def test_what_was_found_is_told_in_words_and_its_numbers_come_from_results() -> None:
    """`says` repeats a text; in `here` and `why` a typed number would be one that nothing keeps right."""
    typed = {c.id: NAMES.sub("", f"{c.here} {c.why}") for c in CLAIMS.rows}
    typed |= {c.id: NAMES.sub("", f"{c.says} {c.here}") for c in CLAIMS.findings.claims}  # what this book says itself
    assert {name: text for name, text in typed.items() if re.search(r"\d", text)} == {}


def test_every_command_of_a_row_is_one_with_its_options() -> None:
    commands = [claim.command for claim in CLAIMS.rows if claim.command]
    assert len(commands) > 10
    assert [complaint for command in commands if (complaint := _complaint(command))] == []
    assert _complaint("companion experiment phase-gaps").endswith("has no verb phase-gaps")
    assert _complaint("companion ceiling 8 --vocabulary 9").endswith("has no option --vocabulary")


def _complaint(command: str) -> str:
    first, *words = shlex.split(command)
    verb: Any = typer.main.get_command(app)
    while hasattr(verb, "commands"):
        if not words or words[0] not in verb.commands:
            return f"{command}: {verb.name} has no verb {words[0] if words else ''}"
        verb = verb.commands[words.pop(0)]
    known = {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    return f"{command}: has no option {unknown[0]}" if unknown or first != "companion" else ""
