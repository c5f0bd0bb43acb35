"""The report in a real browser: no wider than a phone, and readable in light and in dark.

The page forbids scripts, so another page has it in a frame and measures it.
"""

import json
from html import escape, unescape

import pytest

from tape_ds.cli.evaluate import report
from tests.browser import measured, needs_browser
from tests.evaluation import report_examples as examples

pytestmark = [pytest.mark.slow, needs_browser]
SCHEMES = {"light": 1, "dark": 0}
"""Chromium's numbers for the colour scheme that a person prefers."""

MEASURE = """
const frame = document.querySelector("iframe");
function channel(value) { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }
function luminance(c) { return 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]); }
function numbers(text) {
  const scale = text.startsWith("color(srgb") ? 255 : 1;  // what a mixture of colours computes to
  return (text.match(/[\\d.]+/g) || []).map((number, at) => (at < 3 ? scale : 1) * number);
}
function ground(view, element) {
  for (let e = element; e; e = e.parentElement) {
    const c = numbers(view.getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c;
  }
}
function look() {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const found = {width: root.scrollWidth, client: root.clientWidth, words: [99, ""], keys: [99, ""], letters: 99,
    paper: luminance(ground(view, page.body))};
  for (const e of page.body.querySelectorAll("*")) {
    const words = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join("").trim();
    const box = e.getBoundingClientRect(), drawn = e.namespaceURI.endsWith("svg");
    if (!words || !box.width) continue;
    const style = view.getComputedStyle(e), ink = numbers(drawn ? style.fill : style.color);
    const a = luminance(ink), b = luminance(ground(view, e)), kind = e.className === "key" ? "keys" : "words";
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < found[kind][0]) found[kind] = [contrast, words.slice(0, 40)];
    if (drawn) found.letters = Math.min(found.letters, box.height);
  }
  document.querySelector("pre").textContent = JSON.stringify(found);
}
if (frame.contentDocument.querySelector("main")) look(); else frame.addEventListener("load", look);
"""


def look(folder, page, width, scheme):
    """What a browser finds of ``page`` in a frame of ``width`` pixels."""
    frame = f'<iframe width="{width}" height="900" style="border:0" srcdoc="{escape(page)}"></iframe>'
    body = f"{frame}<pre></pre><script>{MEASURE}</script>"
    colours = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    return json.loads(unescape(measured(folder / "outer.html", body, folder / "browser", colours)))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Eight runs with everything, among it names without a place to break."""
    folder = tmp_path_factory.mktemp("report")
    for run in range(8):
        name = f"run_{run}" if run else "a_very_long_name_" * 5
        examples.save(
            folder / "runs" / name,
            run_result=examples.run(losses=[3.0 - 0.1 * run, 2.5, 2.0], warmup_steps=run, model="m" * 90),
            perplexity=examples.perplexity(1 + run / 10),
            passkey=examples.passkey(lambda length, depth, run=run: max(0, 5 - run) if length > 4096 else 5),
            harness=examples.harness(),
        )
    assert report.main([str(folder / "runs"), "--output", str(folder)]) == 0
    return (folder / report.NAME).read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_can_be_read(page, tmp_path, width, scheme):
    """Contrasts of level AA of the Web Content Accessibility Guidelines 2.2: 4.5 for text, 3 for graphics."""
    found = look(tmp_path, page, width, scheme)
    assert found["width"] <= found["client"] <= width, found
    assert found["letters"] >= 10, "height of the words in charts, in pixels"
    assert found["words"][0] >= 4.5, found["words"]
    assert found["keys"][0] >= 3, found["keys"]
    assert (found["paper"] > 0.5) == (scheme == "light")
