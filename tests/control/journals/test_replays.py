"""Which scans are replayed, and so up to when everything is sequenced."""

from braidlog.control.journals.replays import ReplayNeeds


def test_a_scan_is_replayed_when_all_that_it_found_was_replayed_after_it() -> None:
    needs = ReplayNeeds()
    first, second = ("agent-a", 0), ("agent-b", 0)
    needs.scan_asked(5, 1000)
    needs.scan_ended(5, [first, second])
    needs.sequence_replayed(first, 5)
    assert (needs.replayed_scan, needs.replayed_ms) == (0, 0)
    needs.scan_asked(6, 2000)
    needs.scan_ended(6, [first, second])
    # This job was planned before the second scan.
    needs.sequence_replayed(second, 5)
    assert (needs.replayed_scan, needs.replayed_ms) == (5, 1000)
    needs.sequence_complete(first)
    assert needs.needed == [second]
    needs.sequence_replayed(second, 6)
    assert (needs.replayed_scan, needs.replayed_ms) == (6, 2000)


def test_a_number_that_no_scan_has_is_not_replayed_before_the_next_one_that_has_it() -> None:
    """After a restart numbers go on a block higher: who was promised the next one waits for the one that came."""
    needs = ReplayNeeds()
    needs.scan_asked(1001, 10)
    needs.scan_ended(1001, [("a", 0)])
    assert needs.replayed_scan == 0
    needs.scan_asked(2001, 20)
    needs.scan_ended(2001, [("a", 0), ("a", 1)])
    needs.sequence_replayed(("a", 0), 1001)
    assert needs.replayed_scan == 1001
    assert needs.replayed_ms == 10
    needs.sequence_replayed(("a", 0), 2001)
    assert needs.replayed_scan == 1001
    needs.sequence_complete(("a", 1))
    assert needs.replayed_scan == 2001
