"""`braid consume` on a terminal: what a record holds is shown, never obeyed."""

import os
import pty
import subprocess
import sys

from confluent_kafka import Producer

HOSTILE = b"<b>\x1b[2J\x1b]0;pwned\x07\xff\xe2\x80\xae end"


def test_a_terminal_sees_no_control_character_of_a_record(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000})
    producer.produce("hostile-records", HOSTILE, b"\x1bkey", headers=[("h", b"\x9b31m")])
    assert producer.flush(60) == 0
    command = [sys.executable, "-m", "braidlog", "consume", "hostile-records", "--exit", "--key", ": ", "-b", bootstrap]
    keeper, terminal = pty.openpty()
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.wait(120) == 0, process.stderr.read() if process.stderr else b""
    shown = os.read(keeper, 1 << 16)
    os.close(keeper)
    os.close(terminal)
    assert shown == b"\\x1bkey: <b>\\x1b[2J\\x1b]0;pwned\\x07\\xff\\u202e end\r\n"
    piped = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=True)
    assert piped.stdout == b"\x1bkey: " + HOSTILE + b"\n"
