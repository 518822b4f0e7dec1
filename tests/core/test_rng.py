import torch
from hypothesis import given
from hypothesis import strategies as st

from fedprompt.core.rng import derive, numpy_rng, torch_rng


def test_a_key_gives_the_same_seed_in_every_process_and_version() -> None:
    assert derive(0, "init", "server") == 7118878255072492085


@given(st.integers(0, 2**63), st.integers(0, 1000), st.integers(0, 1000))
def test_seeds_fit_every_generator(seed: int, round_: int, client: int) -> None:
    value = derive(seed, "noise", round_, client)
    assert 0 <= value < 2**63
    torch_rng(seed, "noise", round_, client)
    numpy_rng(seed, "noise", round_, client)


def test_different_keys_give_different_seeds() -> None:
    keys = [(seed, purpose, r, c) for seed in (0, 1) for purpose in ("init", "noise") for r in (1, 11) for c in (1, 11)]
    assert len({derive(seed, purpose, *rest) for seed, purpose, *rest in keys}) == 16  # type: ignore[arg-type]


def test_parts_of_a_key_do_not_run_together() -> None:
    assert derive(0, "noise", 1, 11) != derive(0, "noise", 11, 1)
    assert derive(0, "noise", 1, 1) != derive(0, "noise", 11)


def test_generators_with_one_key_draw_alike_and_leave_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    first, second = (torch.rand(3, generator=torch_rng(0, "init")) for _ in range(2))
    assert torch.equal(first, second)
    assert numpy_rng(0, "init").random() == numpy_rng(0, "init").random()
    assert torch.equal(torch.get_rng_state(), before)
