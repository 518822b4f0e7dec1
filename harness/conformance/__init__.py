"""The conformance suite: what every method must hold, checked on a federation that runs in milliseconds.

A property is a function of a method's class and its parameters that raises with one line if it does not hold. Public
code of this field is full of faults that train, converge and print a plausible table (docs/footguns.md); each property
is there because of some of them, and the tests prove each able to fail.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedprompt.core.errors import UserError
from fedprompt.core.interrupts import Interrupted, ctrl_c_apart
from fedprompt.harness.conformance.client import (
    gradient_matches_the_loss,
    head_input,
    loss_falls,
    padding_and_neighbours,
    stacking,
    trainable_tensors_move,
    unseen_and_never_sampled,
)
from fedprompt.harness.conformance.lab import ConformanceError, Params, one_thread
from fedprompt.harness.conformance.prediction import averaged_draws, labels_withheld, logits
from fedprompt.harness.conformance.run import (
    arguments_untouched,
    evaluation_without_side_effects,
    frozen_backbone,
    isolation,
    no_global_random_numbers,
    order_of_clients,
    resume,
    same_seed_same_bits,
)
from fedprompt.harness.conformance.server import (
    identical_uploads,
    names_and_shapes,
    payload,
    server_uses_only_uploads,
    zero_epochs,
)
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.conformance.vocabulary import class_list
from fedprompt.harness.federation.policy import head_owner
from fedprompt.methods import Method

__all__ = ["PROPERTIES", "ConformanceError", "Property", "PropertyResult", "check_method", "check_property"]

Check = Callable[[type[Method], Params], None]


@dataclass(frozen=True)
class Property:
    """``says`` is the claim in words: the first line of the function's docstring."""

    name: str
    says: str
    check: Check
    both_heads: bool = False  # checked with a local head and with a global one; else with the paper's


@dataclass(frozen=True)
class PropertyResult:
    name: str
    ok: bool
    reason: str  # why not, in one line; empty if it holds
    seconds: float


HEAD_MATTERS = (
    names_and_shapes,
    isolation,
    evaluation_without_side_effects,
    payload,
    zero_epochs,
    unseen_and_never_sampled,
)


def _property(check: Check) -> Property:
    says = (check.__doc__ or "").strip()
    return Property(check.__name__.replace("_", " "), says, check, check in HEAD_MATTERS)


PROPERTIES = tuple(
    _property(check)
    for check in (
        names_and_shapes,
        logits,
        averaged_draws,
        labels_withheld,
        frozen_backbone,
        arguments_untouched,
        order_of_clients,
        isolation,
        same_seed_same_bits,
        no_global_random_numbers,
        stacking,
        padding_and_neighbours,
        resume,
        evaluation_without_side_effects,
        payload,
        server_uses_only_uploads,
        identical_uploads,
        zero_epochs,
        trainable_tensors_move,
        gradient_matches_the_loss,
        loss_falls,
        unseen_and_never_sampled,
        head_input,
        class_list,
    )
)


def check_property(property_: Property, method: type[Method], params: Params = None) -> PropertyResult:
    """Whatever the method raises is a failure of the property, told in one line with its type."""
    start = time.perf_counter()
    reason = _failure(property_, method, params)
    if property_.both_heads and not reason and head_owner(method.paper_policy) != "none":
        other = "global" if head_owner(method.paper_policy) == "local" else "local"
        reason = _failure(property_, type(method.__name__, (method,), {"paper_policy": other}), params)
        reason = reason and f"with a {other} head: {reason}"
    return PropertyResult(property_.name, not reason, reason, time.perf_counter() - start)


def _failure(property_: Property, method: type[Method], params: Params) -> str:
    """Why the property does not hold, in one line; empty if it does."""
    try:
        with one_thread(), ctrl_c_apart():
            property_.check(method, params)
    except ConformanceError as error:
        return str(error)
    except Interrupted:
        raise
    except BaseException as error:  # an exit too
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def check_method(method: type[Method], params: Params = None) -> list[PropertyResult]:
    """All properties of ``method``, failed or not; parameters that are wrong in themselves raise a UserError."""
    try:
        with ctrl_c_apart():
            toy_federation(method, params)
    except (UserError, Interrupted):
        raise
    except BaseException:  # a constructor that fails is every property's failure, below
        pass
    return [check_property(property_, method, params) for property_ in PROPERTIES]
