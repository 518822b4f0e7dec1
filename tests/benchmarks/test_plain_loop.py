"""The plain loop is the same algorithm as a stacked round."""

import torch
from plain_loop import round_of
from speed import Line, federation


def test_a_plain_loop_ends_where_a_stacked_round_does() -> None:
    ready = federation("fedvpt-d", clients=3, images=5, batch_size=2)
    state = ready.start()
    plain = round_of(ready, state.server, ready.members)
    before = state.server
    ready.step(state)
    assert plain.keys() == state.server.keys()
    for name, tensor in state.server.items():
        assert not torch.equal(tensor, before[name])
        torch.testing.assert_close(plain[name], tensor, atol=1e-5, rtol=1e-4)


def test_a_line_holds_on_its_own_side_of_the_aim() -> None:
    assert Line("at most", 1.9, 2.0).holds
    assert not Line("at most", 2.1, 2.0).holds
    assert Line("at least", 2.1, 2.0, at_most=False).holds
