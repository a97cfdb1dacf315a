"""A headless Chromium that tests look at pages with, as a person would: width, light and dark, mouse, paper."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

CHROMIUM: Final = shutil.which("chromium")
DRIVER: Final = shutil.which("chromedriver")
ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
OVERFLOWING: Final = """
return Array.from(document.body.querySelectorAll('*')).filter(function (element) {
  if (element.closest('.wide, .symbols, [hidden], .off, script') || element.closest('svg svg')) { return false; }
  var box = element.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(function (element) { return element.tagName + ' ' + element.textContent.slice(0, 60); })
"""
"""What reaches beyond the window, except tables that scroll by themselves."""
CUT: Final = """
return Array.from(document.querySelectorAll('.plot')).flatMap(function (plot) {
  var outer = plot.getBoundingClientRect();
  return Array.from(plot.querySelectorAll('text:not(.off)')).filter(function (text) {
    var box = text.getBoundingClientRect();
    return box.width > 0 && (box.left < outer.left - 1 || box.right > outer.right + 1 || box.bottom > outer.bottom + 1);
  }).map(function (text) { return text.textContent; });
})
"""
"""Words in plots that reach beyond them."""
OVERLAPPING: Final = """
return Array.from(document.querySelectorAll('.plot')).flatMap(function (plot) {
  var boxes = Array.from(plot.querySelectorAll('text'))
    .filter(function (text) { return !text.closest('.off'); })
    .map(function (text) { return [text.textContent, text.getBoundingClientRect()]; })
    .filter(function (pair) { return pair[1].width > 0; });
  return boxes.flatMap(function (a, i) {
    return boxes.slice(i + 1).filter(function (b) {
      return a[1].left < b[1].right && b[1].left < a[1].right &&
        a[1].top + 2 < b[1].bottom && b[1].top + 2 < a[1].bottom;
    }).map(function (b) { return a[0] + ' / ' + b[0]; });
  });
})
"""
"""Words in plots that lie over one another."""

POOR: Final = """
function numbers(color) { return color.match(/[\\d.]+/g).map(Number); }
function light(color) {
  var parts = numbers(color).slice(0, 3).map(function (part) {
    part = part / 255;
    return part <= 0.03928 ? part / 12.92 : Math.pow((part + 0.055) / 1.055, 2.4);
  });
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}
function behind(element) {
  for (var e = element; e; e = e.parentElement) {
    var color = getComputedStyle(e).backgroundColor, parts = numbers(color);
    if (parts.length < 4 || parts[3] > 0) { return color; }
  }
  return 'rgb(255, 255, 255)';
}
return Array.from(document.body.querySelectorAll('*')).filter(function (element) {
  var own = Array.from(element.childNodes).some(function (node) { return node.nodeType === 3 && node.data.trim(); });
  if (!own || !element.getClientRects().length || element.closest('script, .off, .pale, .part')) { return false; }
  var style = getComputedStyle(element), text = element.closest('.plot') && element.tagName === 'text';
  var a = light(text ? style.fill : style.color), b = light(behind(element));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
}).map(function (element) { return element.tagName + ' ' + element.textContent.slice(0, 40); })
"""
"""Texts whose contrast with what is behind them is less than 4.5 (WCAG 2, level AA)."""
SMALL: Final = """
return Array.from(document.body.querySelectorAll('*')).filter(function (element) {
  var own = Array.from(element.childNodes).some(function (node) { return node.nodeType === 3 && node.data.trim(); });
  return own && element.getClientRects().length && !element.closest('script') &&
    parseFloat(getComputedStyle(element).fontSize) < 12;
}).map(function (element) { return element.tagName + ' ' + element.textContent.slice(0, 40); })
"""
"""Texts of less than 12 pixels."""


class Browser:
    """One window. `driver` is selenium's."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = 1280, *, dark: bool = False, height: int = 900) -> None:
        """Show the page in a window of this width, in the light or the dark."""
        self.resize(width, height)
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": scheme})
        self.driver.get(page.absolute().as_uri())

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def ask(self, script: str, *arguments: object) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        self.ask("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        self.driver.find_element("css selector", selector).click()

    def hover(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Put the mouse on this part of an element."""
        x, y = self.ask(
            "var e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
            "var b = e.getBoundingClientRect();"
            "return [b.left + arguments[1] * b.width, b.top + arguments[2] * b.height]",
            selector,
            across,
            down,
        )
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def picture(self, file: Path, *, most: int = 0) -> None:
        """Save the whole page, or its first `most` pixels, as PNG."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        height = min(size["height"], most) if most else size["height"]
        clip = {"x": 0, "y": 0, "width": self.ask("return innerWidth"), "height": height, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        file.write_bytes(base64.b64decode(shot["data"]))

    def paper(self) -> bytes:
        """The page as it is printed, as PDF."""
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])

    def on_paper(self, *, dark: bool = False) -> None:
        """Show the page as it is printed, in the window."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": scheme})
        self.ask("dispatchEvent(new Event('beforeprint'))")

    def messages(self) -> list[str]:
        """What the console has said since the last call: errors of scripts, and what the policy forbids."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Everything that was asked for since the last call, except files and what the policy of the page forbade."""
        told = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        forbidden = {
            event["params"]["requestId"]
            for event in told
            if event["method"] == "Network.loadingFailed" and event["params"].get("blockedReason") == "csp"
        }
        asked = (event["params"] for event in told if event["method"] == "Network.requestWillBeSent")
        urls = (one["request"]["url"] for one in asked if one["requestId"] not in forbidden)
        return [url for url in urls if not url.startswith(("file:", "data:", "chrome:"))]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own, with a fresh profile; skips where there is none."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("NOT TESTED in a browser: 'apt-get install chromium chromium-driver' (make does it as root)")
    selenium = pytest.importorskip("selenium.webdriver")
    options, service = selenium.ChromeOptions(), selenium.ChromeService(executable_path=DRIVER)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium") as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = selenium.Chrome(options=options, service=service)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
