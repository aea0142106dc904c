"""The HTTP face of a daemon, in a real browser and with Prometheus' own parser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from prometheus_client.parser import text_string_to_metric_families
from support import BINARY, DEADLINE, ROOT, until

# `make test` builds the examples beside the binary.
EXAMPLE = Path(os.environ.get("FOREBAY_PAGE") or BINARY.parent / "examples" / "page")
PICTURE = ROOT / "docs" / "images" / "status-page.png"

# A name that would be markup, were it not a text.
NAME = 'photos <b onmouseover="x">&amp;'


class Daemon:
    """The example that serves the page over a loader that runs."""

    def __init__(self, name: str = NAME, pause: int = 5) -> None:
        assert EXAMPLE.exists(), f"{EXAMPLE} is missing; set FOREBAY_PAGE"
        self.process = subprocess.Popen(
            [str(EXAMPLE), "127.0.0.1:0", str(pause), name],
            cwd=ROOT,
            env={**os.environ, "FOREBAY_MEMORY_LIMIT": "1GiB"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.url

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=DEADLINE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def status(self) -> dict[str, Any]:
        return json.loads(self.get("status")[1])

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.get("metrics")[1])
        return {
            (s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples
        }

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(timeout=DEADLINE)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    daemon = Daemon(pause=getattr(request, "param", 5))
    try:
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing; `cargo xtask setup` installs it"
    with sync_playwright() as playwright:
        # Containers give no user namespaces, which Chromium's own sandbox needs.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on(
        "console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None
    )
    elsewhere: list[str] = []
    page.on("request", lambda r: elsewhere.append(r.url))
    yield page
    context.close()
    # What the browser says of a server that is gone is no problem of the page.
    assert [p for p in problems if "ERR_CONNECTION" not in p] == []
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in elsewhere), elsewhere


def _running(daemon: Daemon) -> dict[str, Any]:
    """Wait until rates are known; the status."""
    until(
        lambda: (
            bool(daemon.status()["loaders"])
            and daemon.status()["loaders"][0]["rows_per_second"] > 0
        ),
        "rows a second",
    )
    return daemon.status()


def test_metrics_are_what_prometheus_reads(daemon: Daemon) -> None:
    _running(daemon)
    before, status, after = daemon.metrics(), daemon.status(), daemon.metrics()
    loader = (("loader", NAME), ("rank", "0"))
    rows = ("forebay_rows_total", loader)
    assert 0 < before[rows] <= status["loaders"][0]["rows"] <= after[rows]
    assert before["forebay_loaders", ()] == 1
    assert before["forebay_clients", ()] == 1
    assert before["forebay_budget_limit_bytes", ()] == 2**30
    # A batch is 8 pictures of 3 x 224 x 224 float32, and labels.
    size = before["forebay_batch_bytes_total", loader] / before["forebay_batches_total", loader]
    assert 8 * 3 * 224 * 224 * 4 < size < 8 * 3 * 224 * 224 * 4 + 1000
    assert before["forebay_read_bytes_total", loader] > 0
    for stage in ("fetch", "decode", "transform", "assemble"):
        assert before["forebay_stage_seconds_total", (*loader, ("stage", stage))] > 0, stage
    assert before["process_resident_memory_bytes", ()] > 1e6
    for name, value in before.items():
        if name[0].endswith("_total"):
            assert value <= after[name], name

    text = daemon.get("metrics")[1]
    families = list(text_string_to_metric_families(text))
    assert all(f.documentation and f.type in ("counter", "gauge") for f in families)
    # The parser names counters without their suffix; each family has its samples, and no sample is
    # outside of one.
    assert len(families) == text.count("# TYPE ")
    documented = (ROOT / "docs" / "metrics.md").read_text()
    assert all(f"| `{name}` |" in documented for name in re.findall(r"# TYPE (\S+)", text))


def test_names_of_ray_data_are_those_of_ray() -> None:
    import ray.data._internal.stats as stats
    from ray.data._internal.execution.interfaces.op_runtime_metrics import OpRuntimeMetrics

    text = (ROOT / "docs" / "metrics.md").read_text()
    names = set(re.findall(r"\| `(data_\w+)` \|", text))
    source = Path(stats.__file__).read_text()
    own = {f"data_{m.name}" for m in OpRuntimeMetrics.get_metrics()}
    assert len(names) >= 5
    assert {n for n in names if f'"{n}"' not in source} <= own


def test_health(daemon: Daemon) -> None:
    until(lambda: daemon.get("readyz") == (200, "ok\n"), "ready")
    assert daemon.get("livez") == (200, "ok\n")
    assert daemon.status()["phase"] == "ready"
    assert daemon.stop() == 0


# A trainer that takes no time waits for the pictures.
@pytest.mark.parametrize("daemon", [0], indirect=True)
def test_the_page_shows_the_loader(daemon: Daemon, page: Page) -> None:
    _running(daemon)
    page.goto(daemon.url)
    expect(page.locator("#connection")).to_have_text("ready")
    expect(page.locator(".loader")).to_have_count(1)
    expect(page.locator(".loader h3")).to_have_text(f"{NAME}, rank 0 of 1")
    assert page.locator(".loader b").count() == 0, "a name is a text"
    stages = page.locator(".pipeline .stage .name").all_text_contents()
    assert stages == ["fetch", "decode", "transform", "assemble", "feed"]
    # What it shows is what the daemon says, and it goes on.
    rows = page.locator("dl div", has=page.locator("dt", has_text=re.compile("^rows$"))).locator(
        "dd"
    )
    first = int(rows.inner_text().replace(",", ""))
    page.wait_for_function(
        "before => Number(document.querySelectorAll('dd')[1].textContent.replaceAll(',', ''))"
        " > before",
        arg=first,
    )
    assert first < daemon.status()["loaders"][0]["rows"]
    expect(page.locator(".pipeline .hot .mark")).to_have_text("bottleneck")
    hot = page.locator(".pipeline .hot").get_attribute("data-stage")
    assert hot == "transform"
    expect(page.locator("#memory polygon")).to_have_count(3)
    expect(page.locator("#memory-now")).to_contain_text("of 1.0 GiB now")
    expect(page.locator("#rate polyline")).to_have_count(1)


def test_the_page_is_accessible(daemon: Daemon, page: Page) -> None:
    _running(daemon)
    page.goto(daemon.url)
    expect(page.locator("#connection")).to_have_text("ready")
    pipeline = page.get_by_role("img", name=re.compile(f"^Pipeline of {re.escape(NAME)}: fetch "))
    expect(pipeline).to_have_count(1)
    expect(page.get_by_role("img", name=re.compile("^Memory of the process"))).to_have_count(1)
    expect(page.get_by_role("status")).to_have_attribute("aria-live", "polite")
    expect(page.get_by_role("region")).to_have_count(3)
    # Every link is reached by the keyboard, the way past the header first.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "loaders"
    # Only a change of the connection is announced, not every second.
    page.evaluate(
        "() => { window.said = 0; new MutationObserver(() => window.said++)"
        ".observe(document.getElementById('connection'), {childList: true}) }"
    )
    text = page.locator("#daemon").inner_text()
    page.wait_for_function("t => document.getElementById('daemon').innerText !== t", arg=text)
    assert page.evaluate("window.said") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_light_and_dark(daemon: Daemon, page: Page, scheme: Any) -> None:
    """WCAG's contrast of 4.5 for every text that is shown."""
    page.emulate_media(color_scheme=scheme)
    _running(daemon)
    page.goto(daemon.url)
    expect(page.locator(".pipeline .hot")).to_have_count(1)
    low = page.evaluate(
        """() => {
          const parse = (c) => c.match(/[\\d.]+/g).map(Number);
          const light = (c) => {
            const [r, g, b] = parse(c).map((v) => v / 255)
              .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ground = (e) => {
            for (let n = e; n; n = n.parentElement) {
              const box = n.tagName === "g" ? n.querySelector("rect") : null;
              if (box && !e.classList.contains("mark")) return getComputedStyle(box).fill;
              const c = getComputedStyle(n).backgroundColor;
              if (c && parse(c)[3] !== 0) return c;
            }
            return "rgb(255, 255, 255)";
          };
          const low = [];
          for (const e of document.querySelectorAll("h1,h2,h3,p,a,span,dt,dd,text")) {
            if (!e.textContent || e.closest("noscript,template")) continue;
            const style = getComputedStyle(e);
            const color = e.tagName === "text" ? style.fill : style.color;
            const [a, b] = [light(color), light(ground(e))];
            const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (contrast < 4.5) low.push(`${e.textContent}: ${contrast.toFixed(2)}`);
          }
          return low;
        }"""
    )
    assert low == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(20, 23, 26)") == (scheme == "dark")


def test_a_daemon_that_is_gone_is_said_clearly(daemon: Daemon, page: Page) -> None:
    _running(daemon)
    page.goto(daemon.url)
    expect(page.locator("#connection")).to_have_text("ready")
    assert daemon.stop() == 0
    expect(page.locator("#connection")).to_contain_text("Connection lost: the numbers are from")
    expect(page.locator("#connection")).to_have_class("lost")
    expect(page.locator("body")).to_have_class("stale")
    expect(page.locator(".loader")).to_have_count(1)


def test_the_picture_of_the_documentation(page: Page) -> None:
    """FOREBAY_BLESS=1 takes it anew, after a minute of history."""
    if os.environ.get("FOREBAY_BLESS"):
        daemon = Daemon("train")
        try:
            until(lambda: len(daemon.status()["history"]) > 40, "history")
            page.goto(daemon.url)
            expect(page.locator(".pipeline .hot")).to_have_count(1)
            PICTURE.parent.mkdir(exist_ok=True)
            page.screenshot(path=PICTURE, full_page=True)
        finally:
            daemon.stop()
    data = PICTURE.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 200_000
