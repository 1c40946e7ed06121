"""The console in a real browser, against a cluster that runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.cli.running import started
from tests.console.browser import PATIENCE_MS, Watched, opened_browser, reason_without_browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason_without_browser() != "", reason=reason_without_browser() or "there is a browser"),
    pytest.mark.timeout(900),
]

PAGES = [
    *("/", "/cost", "/uploads", "/topics", "/topics/orders", "/topics/orders/messages", "/groups", "/groups/billing"),
    *("/transactions", "/agents", "/jobs"),
]
HOSTILE = b"<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>\x1b[2J \xe2\x80\xae"

CHECKS = (Path(__file__).parent / "page_checks.js").read_text().partition("\n")[2]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("console")
    options = ["--listen", "127.0.0.1:0", "--console", "127.0.0.1:0", "--metadata", f"sqlite://{folder}/meta.db"]
    with started("up", folder, *options, "-s", "num.partitions=3", "-s", "control_listen=127.0.0.1:0") as process:
        fill(process.addresses["kafka"])
        yield f"http://{process.addresses['console']}"


def fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000})
    for number in range(40):
        producer.produce("orders", f'{{"order": {number}, "city": "Wien"}}', str(number))
    producer.produce("hostile", HOSTILE, HOSTILE, headers=[("<b>name</b>", HOSTILE)])
    producer.produce("hostile", b"\xff\xfe\x00\x01")
    producer.produce("hostile", b"<p>" * 330_000)
    assert producer.flush(120) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("orders", number, 0) for number in range(3)], asynchronous=False)
    consumer.close()


def wait_for_count(page: Any, selector: str, count: int) -> None:
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_count(count, timeout=PATIENCE_MS)


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (820, "dark"), (390, "light")])
def test_every_page_is_whole_in_a_browser(base: str, width: int, theme: str) -> None:
    with opened_browser() as browser:
        watched = Watched.opened(browser, base, width, theme)
        for path in PAGES:
            watched.visit(path)
            assert watched.page.evaluate(CHECKS) == [], path
        assert watched.troubles == []


def test_people_act_by_keyboard_and_hostile_messages_are_only_text(base: str) -> None:
    with opened_browser() as browser:
        watched = Watched.opened(browser, base, 1280, "dark")
        page = watched.page
        watched.visit("/topics")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.type") == "search"
        page.keyboard.type("host")
        wait_for_count(page, "tbody tr", 1)
        page.keyboard.press("Escape")
        page.locator("tbody a", has_text="hostile").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('hostile')")

        watched.visit("/topics/hostile/messages")
        wait_for_count(page, "details.message", 3)
        for each in page.locator("details.message summary").all():
            each.focus()
            page.keyboard.press("Enter")
        wait_for_count(page, "details.message pre", 3)
        shown = page.locator("main").inner_text()
        assert "<script>window.pwned = 1</script>" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img, main script, main b:text('name')").count() == 0

        watched.visit("/topics/orders/messages")
        page.get_by_role("button", name="Produce a message").click()
        page.get_by_label("Key (empty: none)").fill("mine")
        page.get_by_label("Value", exact=True).fill("my own record")
        page.get_by_role("button", name="Produce", exact=True).click()
        page.wait_for_selector(".toast:has-text('produced to orders/')")
        page.wait_for_selector("details.message:has-text('my own record')")
        assert watched.troubles == []
