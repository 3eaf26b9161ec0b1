"""HTML files in a real browser: what is wrong with a page, in windows of several widths."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Commands that start Chromium."""

WIDTHS = (1280, 400)
"""Of a window on a desk, and of a telephone: pixels."""

QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

# What sticks out at the right, unless something around it scrolls: code and tables may, the page's text must not.
_STICKS_OUT = """() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.scrollingElement.scrollWidth > width)
    found.push(`the page is ${document.scrollingElement.scrollWidth} px wide`);
  for (const element of document.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    if (box.width === 0 || box.right <= width + 1) continue;
    let around = element.parentElement;
    while (around && getComputedStyle(around).overflowX === "visible") around = around.parentElement;
    if (!around || around === document.documentElement || around.querySelector("h1"))
      found.push(`${element.tagName.toLowerCase()} ends at ${Math.round(box.right)} px: `
                 + element.innerText.slice(0, 60));
  }
  return found.slice(0, 5);
}"""

_BROKEN = "() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => `no picture: ${i.src}`)"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's; fails with the way out where there is none."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        raise RuntimeError(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


def faults(browser: Any, file: Path, widths: Sequence[int] = WIDTHS) -> list[str]:
    """What is wrong with an HTML file: errors, what sticks out of the window, what comes from the network."""
    page = browser.new_page()
    found: list[str] = []
    page.on("console", lambda said: found.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("requestfailed", lambda request: found.append(f"not loaded: {request.url}"))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else found.append(f"network: {r.url}"))
    page.goto(file.resolve().as_uri(), wait_until="load")
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        found += [f"at {width} px: {fault}" for fault in page.evaluate(_STICKS_OUT)]
    found += page.evaluate(_BROKEN)
    page.close()
    return found
