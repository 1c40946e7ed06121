"""Takes the pictures of the console that README and docs show: `make screenshots`."""

import tempfile
import threading
from pathlib import Path

from confluent_kafka import Producer
from tests.cli.running import started
from tests.console.browser import Watched, opened_browser, reason_without_browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TOPICS = {"orders": 6, "clicks": 3, "payments": 1, "audit": 1}
"""Topics, and their parts of the load."""
QUIET_S, BUSY_S = 20.0, 8.0
SHARDS = 4


def load(bootstrap: str, stop: threading.Event) -> None:
    """Produce a little, then much, so that groups of shards split and merge."""
    producers = [Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) for _ in range(SHARDS)]
    names = [name for name, parts in TOPICS.items() for _ in range(parts)]
    number, since_s, busy = 0, 0.0, False
    while not stop.is_set():
        for producer in producers:
            number += 1
            value = bytes(150_000) if busy else f'{{"order": {number}, "city": "Wien"}}'.encode()
            try:
                producer.produce(names[number % len(names)], value, str(number))
            except BufferError:
                pass
            producer.poll(0)
        pause_s = 0.01 if busy else 0.05
        since_s += pause_s
        if since_s > (BUSY_S if busy else QUIET_S):
            since_s, busy = 0.0, not busy
        stop.wait(pause_s)
    for producer in producers:
        producer.flush(60)


def main() -> None:
    reason = reason_without_browser()
    if reason:
        raise SystemExit(f"no pictures: {reason}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--listen", "127.0.0.1:0", "--console", "127.0.0.1:0", "--metadata", f"sqlite://{folder}/meta.db"]
        options += ["--shards", str(SHARDS), "-s", "num.partitions=8", "-s", "control_listen=127.0.0.1:0"]
        options += ["-s", "store_latency=s3", "-s", "store_price=s3-standard", "--zone", "us-east-1a"]
        with started("up", folder, *options) as process, opened_browser() as browser:
            stop = threading.Event()
            clients = threading.Thread(target=load, args=(process.addresses["kafka"], stop))
            clients.start()
            try:
                base = f"http://{process.addresses['console']}"
                pages = {
                    "uploads": Watched.opened(browser, base, 1280, "dark", 920),
                    "overview": Watched.opened(browser, base, 1280, "light", 1060),
                    "cost": Watched.opened(browser, base, 1280, "light", 1240),
                }
                for path, watched in pages.items():
                    watched.visit("/" if path == "overview" else f"/{path}")
                pages["uploads"].page.wait_for_timeout(95_000)
                for path, watched in pages.items():
                    watched.page.screenshot(path=IMAGES / f"console-{path}.png")
                    print(IMAGES / f"console-{path}.png", *watched.troubles)
            finally:
                stop.set()
                clients.join()


if __name__ == "__main__":
    main()
