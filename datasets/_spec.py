"""What a partition should be: ``kind:key=value,...`` as text, one frozen dataclass per kind in code.

A new kind is a subclass of :class:`PartitionSpec` with its keys as fields and a ``split`` method, listed in ``KINDS``::

    @dataclass(frozen=True, kw_only=True)
    class Even(PartitionSpec):
        kind, example = "even", "even:clients=10"
        clients: int

        def split(self, dataset, seed):
            is_test, rng = np.asarray(dataset.is_test), numpy_rng(seed, "partition", "even")
            train, test = (rng.permutation(np.flatnonzero(part)) for part in (~is_test, is_test))
            return np.array_split(train, self.clients), np.array_split(test, self.clients)
"""

import dataclasses
import difflib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from fedprompt.core.errors import UserError, unknown
from fedprompt.core.rng import numpy_rng
from fedprompt.datasets import _long_tail, _splits
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._splits import TrainTestRows

MAX_COUNT = 10**9  # of clients, shots and the like
MAX_DRAWS = 100  # of a Dirichlet partition before it is given up
Unseen = Literal["none", "half", "last_half"]


@dataclass(frozen=True, kw_only=True)
class PartitionSpec(ABC):
    """The keys that every kind has. ``str(spec)`` is canonical: equal specs give equal text.

    Shots, held-out validation rows, unseen clients, novel classes, the target domain and the imbalance of classes are
    handled for all kinds alike (``_partition.py``, ``_held_out.py``, ``_long_tail.py``); a kind only divides rows among
    clients.
    """

    kind: ClassVar[str]
    example: ClassVar[str]

    clients: int | None = None  # None: as many as the data have domains
    shots: int = 0  # train images that a client keeps of each class; 0 keeps all
    test_shots: int = 0  # the same for test images: a cheaper, coarser accuracy
    unseen: Unseen = "none"  # half: a random half never trains; last_half: the later clients never train
    novel: Literal["none", "half"] = "none"  # half: nobody trains on the later half of the classes
    target: str = ""  # a domain that nobody trains on
    imbalance: float = 1.0  # training images of the last class over those of the first; 1 keeps all

    def __post_init__(self) -> None:
        for name, least in (("clients", 1), ("m", 1), ("s", 1), ("min_size", 1), ("shots", 0), ("test_shots", 0)):
            value = getattr(self, name, None)
            if value is not None and value < least:
                raise UserError(f"partition {self.kind!r}: {name}={value} is too small; it must be at least {least}")
            if value is not None and value > MAX_COUNT:
                raise UserError(
                    f"partition {self.kind!r}: {name}={value!s:.15} is too large; it must be at most {MAX_COUNT}"
                )
        alpha = getattr(self, "alpha", 1.0)
        if not 0 < alpha < np.inf:
            raise UserError(f"partition {self.kind!r}: alpha={alpha} must be a finite number above 0")
        if not 0 < self.imbalance <= 1:
            raise UserError(f"partition {self.kind!r}: imbalance={self.imbalance} must be above 0 and at most 1")
        if self.unseen != "none" and self.clients == 1:
            raise UserError(f"partition {self.kind!r}: unseen={self.unseen} needs at least 2 clients, got clients=1")
        if self.novel != "none" and self.target:
            raise UserError(f"partition {self.kind!r}: novel={self.novel} and target={self.target}; use one of them")

    def __str__(self) -> str:
        """Required keys, then ``clients``, then whatever differs from its default."""
        keys = [field.name for field in _ordered_fields(type(self)) if self._shown(field)]
        text = ",".join(f"{key}={getattr(self, key)}" for key in keys)
        return f"{self.kind}:{text}" if text else self.kind

    def _shown(self, field: "dataclasses.Field[Any]") -> bool:
        value = getattr(self, field.name)
        return value != field.default or (field.name == "clients" and value is not None)

    @abstractmethod
    def split(self, dataset: Dataset, seed: int) -> TrainTestRows:
        """The train rows and the test rows of every client.

        All randomness must come from keys with this ``seed``; refuse what cannot be drawn with a UserError first.
        """


@dataclass(frozen=True, kw_only=True)
class Domains(PartitionSpec):
    """Every client holds ``m`` domains; a domain is cut into equal class-stratified parts, one per holder.

    With ``assignment=cyclic`` client k holds domains k to k + m - 1, modulo their number; ``random_regular`` draws who
    holds what, with every domain used equally often.
    """

    kind = "domains"
    example = "domains:m=2"
    m: int
    assignment: Literal["cyclic", "random_regular"] = "cyclic"

    def split(self, dataset: Dataset, seed: int) -> TrainTestRows:
        count = len(dataset.domain_names)
        clients = self.clients or count
        if self.m > count:
            raise UserError(
                f"partition '{self}': m={self.m} but {dataset.name!r} has {count} domains; use m=1..{count}"
            )
        if clients % count:
            raise UserError(
                f"partition '{self}': clients={clients} is not a multiple of the {count} domains of "
                f"{dataset.name!r}; use clients={count * max(1, round(clients / count))}"
            )
        _check_enough(self, dataset, clients)
        holders = _splits.cyclic_domains(clients, count, self.m)
        if self.assignment == "random_regular":
            holders = _splits.shuffle_domains(holders, numpy_rng(seed, "partition", "domains", "graph"))
        return _splits.by_domains(dataset, holders, numpy_rng(seed, "partition", "domains", "rows"))


@dataclass(frozen=True, kw_only=True)
class Classes(PartitionSpec):
    """Every client holds at most ``s`` classes, and the same random share of a class in train and test.

    ``s`` times ``clients`` must be a multiple of the number of classes, so that all have equally many holders.
    """

    kind = "classes"
    example = "classes:s=10"
    clients: int = 100
    s: int

    def split(self, dataset: Dataset, seed: int) -> TrainTestRows:
        count = dataset.num_classes
        if self.s > count:
            raise UserError(
                f"partition '{self}': s={self.s} but {dataset.name!r} has {count} classes; use s=1..{count}"
            )
        if self.s * self.clients % count:
            step = count // np.gcd(self.s, count)
            raise UserError(
                f"partition '{self}': s*clients={self.s * self.clients} is not divisible by the {count} "
                f"classes of {dataset.name!r}; use clients={step * max(1, round(self.clients / step))}"
            )
        _check_enough(self, dataset, self.clients)
        if not _splits.any_share_has_an_image(dataset, self.s * self.clients // count):
            raise UserError(
                f"partition '{self}': {self.s * self.clients // count} clients share each class, and no share of "
                f"{dataset.name!r} has an image in both splits; use fewer clients or a smaller s"
            )
        return _splits.by_classes(dataset, self.clients, self.s, numpy_rng(seed, "partition", "classes"))


@dataclass(frozen=True, kw_only=True)
class Dirichlet(PartitionSpec):
    """Each class is shared out by Dir(alpha), train and test alike.

    A small ``alpha`` gives most of a class to few clients. The whole division is drawn again until every client has
    ``min_size`` train and ``min_size`` test images.
    """

    kind = "dirichlet"
    example = "dirichlet:alpha=0.5,clients=100"
    clients: int = 100
    alpha: float
    min_size: int = 10

    def split(self, dataset: Dataset, seed: int) -> TrainTestRows:
        _check_enough(self, dataset, self.clients, self.min_size)
        everything = np.ones(len(dataset.labels), bool)
        return _retry_dirichlet(self, dataset, everything, seed, f"all of {dataset.name!r}")


@dataclass(frozen=True, kw_only=True)
class DomainDirichlet(PartitionSpec):
    """Each domain is shared out by Dir(alpha) among ``clients`` clients that hold no other domain."""

    kind = "domain-dirichlet"
    example = "domain-dirichlet:alpha=0.3,clients=5"
    clients: int = 5  # per domain
    alpha: float
    min_size: int = 2

    def split(self, dataset: Dataset, seed: int) -> TrainTestRows:
        domains = np.asarray(dataset.domains)
        for number in range(len(dataset.domain_names)):
            _check_enough(self, dataset, self.clients, self.min_size, number)
        train, test = [], []
        for number, name in enumerate(dataset.domain_names):
            part = _retry_dirichlet(self, dataset, domains == number, seed, f"domain {name!r}", number)
            train += part[0]
            test += part[1]
        return train, test


@dataclass(frozen=True, kw_only=True)
class Disjoint(PartitionSpec):
    """No two clients share a class.

    ``balanced`` groups differ by at most one class; ``public`` is the rule of the published code: every client gets
    round(classes / clients) of them, and the last one what remains.
    """

    kind = "disjoint"
    example = "disjoint:clients=10"
    clients: int = 10
    rule: Literal["balanced", "public"] = "balanced"

    def split(self, dataset: Dataset, seed: int) -> TrainTestRows:
        count = dataset.num_classes
        if self.clients > count:
            raise UserError(
                f"partition '{self}': clients={self.clients} but {dataset.name!r} has {count} classes; "
                f"use clients=1..{count}"
            )
        size = round(count / self.clients)
        if self.rule == "public" and not 0 < size * (self.clients - 1) < count:
            raise UserError(
                f"partition '{self}': {size} classes per client leave none of the {count} for the last one; "
                "use rule=balanced or fewer clients"
            )
        order = numpy_rng(seed, "partition", "disjoint", "classes").permutation(count)
        cuts = size * np.arange(1, self.clients) if self.rule == "public" else self.clients
        groups = np.array_split(order, cuts)
        return _splits.by_disjoint_classes(dataset, groups, numpy_rng(seed, "partition", "disjoint", "rows"))


@dataclass(frozen=True, kw_only=True)
class ClientLongTail(PartitionSpec):
    """The rarest classes live mostly with a few small clients, the last ones.

    A share ``tail`` of the clients gets ``tail + (1 - tail) spec`` of the images of the rarest ``tail_classes``; the
    larger ``leak``, the more images of other classes. Within both groups a class is shared out by Dir(alpha).
    """

    kind = "client-lt"
    example = "client-lt:alpha=0.5,imbalance=0.01"
    clients: int = 30
    alpha: float
    tail: float = 0.1  # of the clients
    tail_classes: float = 0.2  # of the classes, those with the fewest training images
    spec: float = 0.75  # specialisation: 0, tail classes are spread like all others; 1, only tail clients have them
    leak: float = 3.0  # how many images of other classes tail clients get; none if spec is 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("tail", 0, 1), ("tail_classes", 0, 1), ("spec", 0, 1), ("leak", 0, MAX_COUNT)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"partition {self.kind!r}: {name}={value} must be from {low} to {high}")
        if not 0 < self.head_clients < self.clients:
            raise UserError(
                f"partition {self.kind!r}: tail={self.tail} of clients={self.clients} leaves {self.head_clients} head "
                "clients and no tail or no head; use other values"
            )

    @property
    def head_clients(self) -> int:
        return int((1 - self.tail) * self.clients + _long_tail.ROUNDING)

    def split(self, dataset: Dataset, seed: int) -> TrainTestRows:
        labels = np.asarray(dataset.labels)[~np.asarray(dataset.is_test)]
        sizes = np.bincount(labels, minlength=dataset.num_classes)
        rarest = _long_tail.tail_classes(sizes, self.tail_classes)
        if rarest.all() or not rarest.any():
            raise UserError(
                f"partition '{self}': tail_classes={self.tail_classes} of the {len(sizes)} classes of {dataset.name!r} "
                "are none or all; use another value"
            )
        _check_enough(self, dataset, self.clients)
        budgets = _long_tail.tail_budgets(sizes, rarest, self.tail, self.spec, self.leak)
        rng = numpy_rng(seed, "partition", "client-lt")
        return _long_tail.by_groups(dataset, budgets, self.head_clients, self.clients, self.alpha, rng)


KINDS: dict[str, type[PartitionSpec]] = {
    kind.kind: kind for kind in (Domains, Classes, Dirichlet, Disjoint, DomainDirichlet, ClientLongTail)
}


def parse_partition(text: str) -> PartitionSpec:
    """Read ``kind:key=value,key=value``, such as ``"dirichlet:alpha=0.5,clients=100"``.

    Unknown kinds and keys, missing keys and values out of range raise a UserError with an example.
    """
    name, _, rest = text.strip().partition(":")
    examples = ", ".join(kind.example for kind in KINDS.values())
    if name not in KINDS:
        raise unknown("partition", name, KINDS, hint=f"Examples: {examples}.")
    kind = KINDS[name]
    fields = {field.name: field for field in _ordered_fields(kind)}
    values: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key not in fields:
            raise unknown(f"key of partition {name!r}", key, fields, hint=f"Example: {kind.example}.")
        if not equals or key in values:
            raise UserError(f"partition {text!r}: write {key}=VALUE once, for example {kind.example}")
        values[key] = _read_value(text, key, value, fields[key].type)
    missing = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in values]
    if missing:
        raise UserError(f"partition {text!r} lacks {missing[0]}=; for example {kind.example}")
    return kind(**values)


def _ordered_fields(kind: type[PartitionSpec]) -> list["dataclasses.Field[Any]"]:
    def rank(field: "dataclasses.Field[Any]") -> int:
        return 0 if field.default is dataclasses.MISSING else 1 if field.name == "clients" else 2

    return sorted(dataclasses.fields(kind), key=rank)


def _read_value(text: str, key: str, value: str, annotation: Any) -> int | float | str:
    choices = get_args(annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            near = difflib.get_close_matches(value, choices, n=1)
            meant = f" did you mean {near[0]!r}?" if near else ""
            raise UserError(f"partition {text!r}: {key}={value!r};{meant} allowed: {', '.join(choices)}")
        return value
    if annotation is str:
        return value
    number = float if annotation is float else int
    try:
        return number(value)
    except ValueError:
        kind = "a number" if number is float else "a whole number"
        raise UserError(f"partition {text!r}: {key}={value!r} is not {kind}") from None


def _check_enough(
    spec: PartitionSpec, dataset: Dataset, clients: int, least: int = 1, domain: int | None = None
) -> None:
    """Refuse at once what no draw can give: ``least`` train and ``least`` test images for each of ``clients``."""
    is_test = np.asarray(dataset.is_test)
    where = slice(None) if domain is None else np.asarray(dataset.domains) == domain
    what = repr(dataset.name) if domain is None else f"domain {dataset.domain_names[domain]!r}"
    images, split = min((int((~is_test)[where].sum()), "train"), (int(is_test[where].sum()), "test"))
    if clients * least > images:
        smaller = " or a smaller min_size" if least > 1 else ""
        raise UserError(
            f"partition '{spec}': {clients} clients with at least {least} {split} images each, but {what} has {images};"
            f" use clients={'1..' if images >= 2 * least else ''}{max(1, images // least)}{smaller}"
        )


def _retry_dirichlet(
    spec: Dirichlet | DomainDirichlet,
    dataset: Dataset,
    where: np.ndarray,
    seed: int,
    what: str,
    *key: int,
) -> TrainTestRows:
    """Draw until every client has ``min_size`` train and test images; every attempt has its own generator."""
    for attempt in range(MAX_DRAWS):
        rng = numpy_rng(seed, "partition", spec.kind, *key, attempt)
        draw = _splits.DirichletDraw.draw(dataset, where, spec.clients, spec.alpha, rng)
        sizes = draw.sizes()
        if sizes.min() >= spec.min_size:
            return draw.rows()
    part, client = np.unravel_index(sizes.argmin(), sizes.shape)
    raise UserError(
        f"partition '{spec}': after {MAX_DRAWS} draws over {what} client {client} still has {sizes.min()} "
        f"{('train', 'test')[part]} images, min_size={spec.min_size}; use fewer clients, a larger alpha or a "
        "smaller min_size"
    )
