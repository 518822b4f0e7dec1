import pytest

from fedprompt.core.errors import UserError
from fedprompt.core.fields import build
from fedprompt.harness.federation.protocol import Protocol


def evaluated(**options: int) -> list[int]:
    protocol = Protocol(**options)
    return [round_ for round_ in range(1, protocol.rounds + 1) if protocol.evaluated(round_)]


def test_the_last_ten_rounds_and_a_grid_are_evaluated() -> None:
    assert evaluated(rounds=100) == [*range(10, 91, 10), *range(91, 101)]
    assert evaluated(rounds=35, eval_every=20) == [20, *range(26, 36)]


def test_fewer_rounds_than_ten_are_all_evaluated() -> None:
    assert evaluated(rounds=4) == [1, 2, 3, 4]


def test_exactly_the_last_ten() -> None:
    assert evaluated(rounds=60, eval_every=1000) == list(range(51, 61))


def test_the_published_settings_are_the_defaults() -> None:
    protocol = Protocol()
    assert (protocol.rounds, protocol.epochs, protocol.last) == (100, 5, 10)
    assert (protocol.momentum, protocol.weight_decay, protocol.batch_size) == (0.9, 1e-5, 64)
    assert (protocol.optimiser, protocol.schedule, protocol.warmup, protocol.clip) == ("sgd", "constant", 0, 0)
    assert (protocol.decay_biases, protocol.head_input) == (True, "raw")
    assert (protocol.agg_weights, protocol.never_sampled, protocol.eval_point) == ("samples", "finetune", "post_agg")
    assert protocol.mask_local_classes is False


@pytest.mark.parametrize(
    "bad",
    [
        {"rounds": 0},
        {"epochs": -1},
        {"batch_size": 0},
        {"participation": 1.5},
        {"participation": -0.1},
        {"momentum": 2},
        {"weight_decay": "inf"},
        {"optimiser": "lion"},
        {"schedule": "step"},
        {"warmup": -1},
        {"clip": -0.1},
        {"head_input": "scaled"},
        {"agg_weights": "median"},
        {"never_sampled": "ignore"},
        {"eval_point": "before"},
        {"last": 0},
        {"val_fraction": 1},
        {"stack": -1},
    ],
)
def test_values_out_of_range_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        build(Protocol, bad, "protocol")
