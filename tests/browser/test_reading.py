"""The book in a browser: every page at desk and phone width, light and dark, by mouse and by keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from companion.ceiling import entropy_ceiling, entropy_floor

pytestmark = pytest.mark.browser

HTML = Path(__file__).resolve().parents[2] / "build" / "html"
PAGES = sorted(
    path.relative_to(HTML).as_posix()
    for path in HTML.rglob("*.html")
    if not {"_static", "_sources"} & set(path.relative_to(HTML).parts)
    and path.name not in ("genindex.html", "index.html")
)
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# what is written in a page's source and must have become something else
RAW = re.compile(
    r"\$\$|\{(?:doc|cite|cite:t|cite:p|prf:\w+|eq|ref)\}`|^:::|\\begin\{|\\frac\{|⟨measured⟩", re.MULTILINE
)
VISIBLE = """() => {
  const copy = document.querySelector("article, main").cloneNode(true);
  for (const code of copy.querySelectorAll("pre, code, script, style, mjx-container, .math")) code.remove();
  return copy.textContent;
}"""


@pytest.fixture
def page(browser, request):
    width = getattr(request, "param", DESK)
    context = browser.new_context(viewport=width)
    yield context.new_page()
    context.close()


def opened(page, site, name):
    page.goto(f"{site}/{name}", wait_until="load")
    page.evaluate("window.MathJax && MathJax.startup ? MathJax.startup.promise : null")
    return page


def test_there_are_pages():
    assert len(PAGES) > 25


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_keeps_to_itself(page, site, name):
    complaints, elsewhere = [], []
    page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((site, "data:")) else elsewhere.append(asked.url))
    page.on("response", lambda got: complaints.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    opened(page, site, name)
    assert complaints == []
    assert elsewhere == []
    assert page.locator("h1").count() >= 1
    assert (
        page.evaluate("[...document.querySelectorAll('.math')].filter(m => !m.querySelector('mjx-container')).length")
        == 0
    )
    assert page.evaluate("document.querySelectorAll('mjx-merror').length") == 0
    assert RAW.findall(page.evaluate(VISIBLE)) == []
    pictures = page.evaluate(
        "async () => Promise.all([...document.querySelectorAll('article img')].map(async i => {"
        "i.loading = 'eager'; await i.decode().catch(() => 0); return [i.naturalWidth, i.alt, i.src]}))"
    )
    assert [src for width, _, src in pictures if width == 0] == []
    assert [src for _, alt, src in pictures if len(alt) < 10 or alt.endswith(".png")] == [], "no alternative text"


@pytest.mark.parametrize("page", [PHONE], indirect=True, ids=["phone"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_moves_sideways_on_a_phone(page, site, name):
    opened(page, site, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [name for name in PAGES if name != "search.html"])  # it has no article
def test_contrast_and_names_pass_axe(page, site, name, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page.emulate_media(color_scheme=scheme)
    opened(page, site, name)
    rules = ["color-contrast", "image-alt", "label", "button-name", "select-name", "link-name", "aria-valid-attr-value"]
    found = axe.Axe().run(page, context="article", options={"runOnly": {"type": "rule", "values": rules}})
    assert [
        f"{broken['id']}: {node['html'][:120]}" for broken in found.response["violations"] for node in broken["nodes"]
    ] == []


def test_the_search_finds_a_term(page, site):
    opened(page, site, "search.html?q=losslessness")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li").count() >= 2


def test_the_bracket_answers_to_keys_and_is_right(page, site):
    opened(page, site, "notebooks/04_entropy_ceiling.html")
    part = page.locator(".bracket")
    slider, caption = part.locator("input"), part.locator(".caption")
    slider.focus()
    seen = set()
    for key in ("Home", *["ArrowRight"] * 30, "End"):
        page.keyboard.press(key)
        h, floor, ceiling = map(float, re.findall(r"\d+\.\d+", caption.text_content()))
        exact = slider.evaluate("s => Number(s.value)")
        size = int(part.evaluate("p => JSON.parse(p.dataset.vocabularies)[p.querySelector('select').value]"))
        assert floor == pytest.approx(entropy_floor(exact), abs=6e-5)
        assert ceiling == pytest.approx(entropy_ceiling(exact, size), abs=6e-5)
        seen.add(h)
    assert len(seen) > 20
    before = caption.text_content()
    part.locator("select").select_option(index=1)
    assert caption.text_content() != before


@pytest.mark.parametrize("name", ["05_speculative_decoding", "16_the_prefix_scheduler"])
def test_steps_go_forth_and_back_by_keys(page, site, name):
    opened(page, site, f"notebooks/{name}.html")
    part = page.locator(".stepped").first
    slider, caption = part.locator("input"), part.locator(".caption")
    visible = "p => [...p.querySelectorAll('[data-from], [data-at]')].filter(e => !e.hidden).length"
    last = int(slider.get_attribute("max"))
    first = caption.text_content()
    assert part.locator("button", has_text="Back").is_disabled()
    part.locator("button", has_text="Next").focus()
    page.keyboard.press("Enter")
    assert caption.text_content() != first
    page.keyboard.press("Tab")  # Play
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert int(slider.input_value()) == last
    assert part.locator("button", has_text="Next").is_disabled()
    everything = part.evaluate(visible)
    page.keyboard.press("Home")
    assert caption.text_content() == first
    assert part.evaluate(visible) <= everything
    part.locator("button", has_text="Play").click()
    page.wait_for_function("s => Number(s.value) > 0", arg=slider.element_handle(), timeout=5000)
    part.locator("button", has_text="Pause").click()


def test_without_scripts_everything_is_there(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/notebooks/16_the_prefix_scheduler.html")
    steps = page.locator(".stepped").first.locator("[data-at]")
    assert steps.count() >= 3
    assert all(steps.nth(i).is_visible() for i in range(steps.count()))
    page.goto(f"{site}/notebooks/04_entropy_ceiling.html")
    assert page.locator(".bracket table").is_visible()
    context.close()
