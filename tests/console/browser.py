"""A real browser for the console's tests, where there is one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 60_000
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def browser_program() -> str | None:
    """The browser that is installed here."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def reason_without_browser() -> str:
    """Why no browser can be used; empty if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if browser_program() else "there is no chromium here: apt-get install chromium"


@contextmanager
def opened_browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=browser_program(), args=arguments, timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page with everything that went wrong on it."""

    page: "Page"
    base: str
    troubles: list[str] = field(default_factory=list)

    @classmethod
    def opened(cls, browser: "Browser", base: str, width: int, theme: Any, height: int = 900) -> "Watched":
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        context.set_default_timeout(PATIENCE_MS)
        found = cls(context.new_page(), base)
        found.page.on("console", found._heard)
        found.page.on("pageerror", lambda error: found.troubles.append(f"error: {error}"))
        found.page.on("requestfailed", found._failed)
        found.page.on("response", lambda answer: found._answered(answer.status, answer.url))
        return found

    def _heard(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.troubles.append(f"{message.type}: {message.text}")

    def _failed(self, request: Any) -> None:
        # A page that is left gives up what it was still asking for.
        if request.failure != "net::ERR_ABORTED":
            self.troubles.append(f"failed: {request.url} {request.failure}")

    def _answered(self, status: int, url: str) -> None:
        if status >= 400:
            self.troubles.append(f"{status}: {url}")

    def visit(self, path: str) -> None:
        """Open a page, and return when its table is there."""
        self.page.goto(self.base + path, wait_until="domcontentloaded")
        self.page.wait_for_selector("main section.card")
