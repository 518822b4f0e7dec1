"""What is searched of each method."""

from fedprompt.backbones.weights import backbone_spec
from fedprompt.core.fields import is_rate
from fedprompt.harness.tuning.spaces import search_space
from fedprompt.methods import registry


def test_every_rate_of_every_method_is_searched() -> None:
    for method in registry().names():
        cls = registry().get(method)
        rates = {name for name in cls.Params.__dataclass_fields__ if is_rate(name)}
        if cls.needs == {"features"}:  # nothing but a head: lr is its rate
            rates.discard("head_lr")
        assert rates <= search_space(method, {}, "here").keys()


def test_a_suite_may_exclude_a_rate() -> None:
    assert list(search_space("pfedpg", {"head_lr": [], "gen_lr": []}, "here")) == ["lr"]


def test_values_that_a_small_backbone_has_no_block_for_are_left_out() -> None:
    def blocks(name: str) -> tuple[int, ...]:
        return search_space("pep-fedpt", {}, "here", backbone_spec(name, "random"))["insert_block"]

    assert blocks("micro-vit") == (3,)
    assert blocks("vit_tiny_patch16_224") == (3, 6, 9)
