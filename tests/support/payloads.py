"""What a method sends, in one pair of numbers."""

from fedprompt.harness.federation.payload import traffic
from fedprompt.methods import Method


def floats_sent(method: Method) -> tuple[int, int]:
    """Floats that one client downloads and uploads in a round, by shapes alone."""
    sent = traffic(method)
    return sent.down.floats, sent.up.floats
