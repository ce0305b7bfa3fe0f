"""The report of a replay in a real browser: it stands by itself, its scripts run, and it shows something."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.browser import dom_of, picture_of
from support.token_world import MODES, TokenWorld, Wandering, random_load, write_run
from trimtab import __version__

TRIMTAB = Path(sys.executable).with_name("trimtab")
LOG = Path(__file__).parents[1] / "data" / "traces" / "llama8b_fa3_ctx64.csv.gz"
POLICIES = ("goodput", "fixed:3", "sglang-ema")
FIGURES = ("goodput", "steps", "regret", "load", "acceptance", "cost")
# Moves the pointer over every figure that answers to it, and writes down what it says.
POINTING = """<script>
const said = [];
for (const figure of document.querySelectorAll("figure[data-hover]")) {
  const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
  const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
  svg.dispatchEvent(new PointerEvent("pointermove", at));
  said.push(figure.querySelector(".tip").innerText + " | " + getComputedStyle(figure.querySelector(".tip")).visibility);
}
const note = document.createElement("pre");
note.id = "said";
note.textContent = said.join("\\n====\\n");
document.body.append(note);
</script></body>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    """The report on a real log and on a trace with counts by depth."""
    world = TokenWorld(random_load(1, stretches=6, largest=32, tokens=6_000), 1)
    counted = write_run(folder / "counted.parquet", world, world.run(Wandering(MODES, 1), 1).rows)
    path = folder / "report.html"
    named = [word for policy in POLICIES for word in ("--policy", policy)]
    command = [str(TRIMTAB), "replay", str(LOG), str(counted), *named, "--report", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return path


def test_the_page_needs_nothing_but_itself(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 3_000_000
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", text) == []
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_the_page_says_how_it_was_made(page: Path) -> None:
    text = page.read_text()
    assert f"trimtab replay {LOG}" in text
    assert f"Trimtab {__version__}" in text


def test_a_browser_shows_every_figure_for_every_trace_and_the_scripts_run(page: Path) -> None:
    dom = dom_of(page)
    assert 'data-ready="yes"' in dom
    for number in (0, 1):
        for name in FIGURES:
            assert f'id="{name}-{number}"' in dom
    assert dom.count("<figure") == 2 * len(FIGURES)
    assert dom.count('<table class="results">') == 2
    for policy in ("as recorded", *POLICIES):
        assert dom.count(f"</span>{policy}</td>") == 2


def test_pointing_at_a_figure_says_the_values_there(page: Path) -> None:
    pointed = page.with_name("pointed.html")
    pointed.write_text(page.read_text().replace("</body>", POINTING))
    (said,) = re.findall(r'<pre id="said">(.*?)</pre>', dom_of(pointed), re.DOTALL)
    tips = said.split("\n====\n")
    assert len(tips) == 2 * 4
    assert all(tip.rstrip().endswith("| visible") for tip in tips)
    goodput, steps, regret, load = tips[:4]
    assert re.search(r"seconds of|seconds", goodput)
    for policy in POLICIES:
        assert re.search(rf"{policy}: [\d,]+", goodput)
        assert re.search(rf"{policy}: \S+ \d+%", steps)
        assert re.search(rf"{policy}: -?[\d.,]+ s", regret)
    assert re.search(r"batch size: [\d.]+", load)


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_readable_on_light_and_dark_screens(page: Path, folder: Path, dark: bool) -> None:
    picture = np.asarray(Image.open(picture_of(page, folder / f"{dark}.png", dark=dark)).convert("L"), dtype=float)
    background = float(np.median(picture))
    assert (background < 60) if dark else (background > 230)
    different = np.abs(picture - background) > 90
    # There is writing and drawing all over the page, and it stands out.
    assert 0.01 < different.mean() < 0.4
    assert (different.reshape(6, -1).mean(axis=1) > 0.005).all()


def test_on_a_narrow_screen_nothing_is_wider_than_the_page(page: Path) -> None:
    narrow = page.with_name("narrow.html")
    measure = "<script>document.body.dataset.over = document.documentElement.scrollWidth - innerWidth;</script></body>"
    narrow.write_text(page.read_text().replace("</body>", measure))
    (over,) = re.findall(r'data-over="(-?\d+)"', dom_of(narrow))
    assert int(over) <= 0
