"""A cell: one unit of work, described completely. Its hash names its run folder."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedprompt.backbones.weights import BackboneSpec, is_clip, offered
from fedprompt.core.errors import UserError, unknown
from fedprompt.core.fields import build
from fedprompt.datasets import dataset_names, parse_partition
from fedprompt.harness.federation.policy import PAPER, POLICIES, applicable, head_owner, policy_protocol
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.running.code import code_digest
from fedprompt.methods import Method, registry

SIZES = ("clients=", "shots=", "test_shots=", "min_size=")  # keys of a partition that labels leave out

# Fields of the protocol that came after the first published runs, whose hashes stay: left out where they have defaults.
LATER_FIELDS = ("precision", "optimiser", "decay_biases", "schedule", "warmup", "clip", "head_input")


@dataclass(frozen=True)
class Cell:
    """Everything a result depends on, except the data themselves, whose checksum the run records."""

    method: str
    params: dict[str, Any]  # every parameter of the method, defaults filled in
    dataset: str
    partition: str  # canonical
    backbone: BackboneSpec
    protocol: Protocol  # its head is `local`, `global` or `none`
    seed: int
    code: str  # digest of the source that computes it

    def to_json(self) -> str:
        """Canonical text: equal cells give equal text."""
        values = dataclasses.asdict(self)
        for name in LATER_FIELDS:  # what every cell had before there was a choice
            if values["protocol"][name] == Protocol.__dataclass_fields__[name].default:
                del values["protocol"][name]
        return json.dumps(values, sort_keys=True, indent=1)

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @cached_property
    def setup(self) -> str:
        """The hash without the code: what cells share that were run before and after an edit."""
        return dataclasses.replace(self, code="").hash

    @property
    def label(self) -> str:
        """Its name in progress bars, messages and MLflow: short, and different early."""
        return self.named(registry().title(self.method) if self.method in registry() else self.method)

    def named(self, row: str) -> str:
        """The label with another name of the row, such as a variant's."""
        return f"{row} {_short_partition(self.partition)} s{self.seed} {self.protocol.head}"

    @property
    def phase(self) -> str:
        """`tune` where held-out training data are evaluated, `final` where test data are."""
        return "tune" if self.protocol.val_fraction else "final"


def _short_partition(text: str) -> str:
    """What tells partitions of one study apart: `m=2`, `alpha=0.3 unseen`; sizes are left out."""
    kind, _, keys = text.partition(":")
    shown = (key.replace("unseen=half", "unseen") for key in keys.split(",") if not key.startswith(SIZES))
    return " ".join(filter(None, shown)) or kind


def cell_from_json(text: str) -> Cell:
    fields = json.loads(text)
    return Cell(
        **{**fields, "backbone": BackboneSpec(**fields["backbone"]), "protocol": Protocol(**fields["protocol"])}
    )


def make_cell(
    method: str,
    dataset: str,
    partition: str,
    backbone: BackboneSpec,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    protocol: Mapping[str, Any] | None = None,
    policy: str = PAPER,
) -> Cell:
    """Check every name and value that can be checked without the data, and fill in the defaults.

    ``method`` may be an alias, which stands for a policy. The training can be read under ``policy``; with `paper`,
    the protocol's own ``head`` counts if it is given, else the method's choice in its paper.
    """
    method, policy = resolve_policy(method, policy)
    cls = registry().get(method)
    cls.require(backbone.name, offered(backbone.name))
    if seed < 0:
        raise UserError(f"seed {seed} is negative; seeds are 0, 1, 2, ...")
    values = dataclasses.asdict(build(cls.Params, params or {}, f"parameters of {method}"))
    rules = _with_policy(cls, build(Protocol, protocol or {}, "protocol"), policy)
    if dataset not in dataset_names() and not dataset.startswith("folder:"):
        raise unknown("data set", dataset, [*dataset_names(), "folder:PATH"])
    digest = code_digest(cls, is_clip(backbone.name))
    return Cell(method, values, dataset, str(parse_partition(partition)), backbone, rules, seed, digest)


def resolve_policy(method: str, policy: str) -> tuple[str, str]:
    """The method behind a name that may be an alias, and the policy that the two ask for."""
    if policy not in (PAPER, *POLICIES):
        raise unknown("policy", policy, (PAPER, *POLICIES))
    name, fixed = registry().resolve(method)
    if fixed and policy not in (PAPER, fixed):
        raise UserError(f"method {method!r} is {name!r} with the policy {fixed!r}, not {policy!r}; use {name!r}.")
    return name, fixed or policy


def _with_policy(method: type[Method], protocol: Protocol, policy: str) -> Protocol:
    """``protocol`` with the head that ``policy`` asks for; fine-tuning lasts as long as a visit unless it says more."""
    allowed = applicable(method.paper_policy)
    if policy != PAPER and policy not in allowed:
        has = "has no head" if head_owner(method.paper_policy) == "none" else "has a head"
        raise UserError(f"method {method.name!r} {has}; its policies are {', '.join(allowed)}, not {policy!r}.")
    owners = tuple(dict.fromkeys(map(head_owner, allowed)))
    if protocol.head not in (PAPER, *owners):
        raise UserError(f"method {method.name!r} cannot have head = {protocol.head!r}; use {' or '.join(owners)}.")
    if policy == PAPER and protocol.head != PAPER:
        return protocol
    resolved = method.paper_policy if policy == PAPER else policy
    fields = policy_protocol(resolved, protocol.finetune_epochs or protocol.epochs)
    if protocol.head not in (PAPER, fields["head"]):
        raise UserError(
            f"policy {policy!r} needs head = {fields['head']!r}, not {protocol.head!r}; leave out one of them."
        )
    if policy == PAPER and protocol.finetune_epochs:  # in addition to the paper's reading
        fields["finetune_epochs"] = protocol.finetune_epochs
    return dataclasses.replace(protocol, **fields)
