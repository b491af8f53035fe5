"""Pages as tests see them: their elements, and headless Chromium; `open_browser` skips the test without Chromium."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

BINARIES = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """The elements of a page with their attributes, the texts of scripts, the levels of headings, the rows of tables,
    and the texts outside of figures."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.scripts: list[str] = []
        self.levels: list[int] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)
        self.scripts += [""] if tag == "script" else []
        self.levels += [int(tag[1])] if tag in ("h1", "h2", "h3", "h4", "h5") else []
        self.rows += [[]] if tag == "tr" else []
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if not {"svg", "style"} & set(self.open):
            self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, Any]]:
        """The attributes of all elements with this name."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """All texts as one line."""
        return " ".join("".join(self.texts).split())


@contextmanager
def open_browser() -> Iterator["Browser"]:
    """A browser that is closed at the end."""
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    binary = next(filter(None, map(shutil.which, BINARIES)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    os.environ["SE_OFFLINE"] = "true"
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()


class Browser:
    """What the tests ask of Chromium."""

    def __init__(self, chrome: Any):
        self.chrome = chrome

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Opens a file in a window of this size. media: "print" or ""."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.chrome.get(path.resolve().as_uri())

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """A command of the Chrome DevTools protocol."""
        return self.chrome.execute_cdp_cmd(command, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs JavaScript in the page."""
        return self.chrome.execute_script(script, *arguments)

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Waits until an expression of JavaScript is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.chrome, seconds, 0.05).until(lambda chrome: chrome.execute_script(f"return {condition}"))

    def requests(self) -> list[str]:
        """The addresses of all requests since they were last asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.chrome.get_log("performance")]
        sent = [it["params"]["request"]["url"] for it in messages if it["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def errors(self) -> list[str]:
        """What the console said since it was last asked."""
        return [entry["message"] for entry in self.chrome.get_log("browser")]
