"""Which client has which rows in each split, with a content hash that every record carries."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.core.rng import numpy_rng
from fedprompt.core.untrusted import read_arrays
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._held_out import shared_test_sets, training_part
from fedprompt.datasets._long_tail import long_tailed
from fedprompt.datasets._sample import few_shots, held_out
from fedprompt.datasets._spec import PartitionSpec
from fedprompt.datasets._splits import Rows

SPLITS = ("train", "test", "val")
SHARED = ("base", "novel", "target")


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows (int64, sorted) of the data set that each client trains, tests and validates on.

    ``partition.train[k]`` are the training rows of client ``k``: ``dataset.images[rows]`` and ``dataset.labels[rows]``
    belong together.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    val: tuple[np.ndarray, ...]  # empty arrays unless ``val_fraction`` is set
    unseen: tuple[int, ...] = ()  # clients that never take part in training
    shared: Mapping[str, np.ndarray] = field(default_factory=dict)  # further test rows, by name, for every client
    base_classes: int = 0  # how many classes are trained on, the first ones; 0 means all

    @property
    def num_clients(self) -> int:
        """All clients, those that never train included."""
        return len(self.train)

    @property
    def all_rows(self) -> np.ndarray:
        """Every row that any client trains or is evaluated on, once."""
        return np.unique(np.concatenate([*self.train, *self.test, *self.val, *self.shared.values()]))

    def label_space(self, split: str, num_classes: int) -> range:
        """The labels that compete for an image of ``split``: all trained classes, or for `novel` all others."""
        trained = self.base_classes or num_classes
        return range(trained, num_classes) if split == "novel" else range(trained)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the rows of every split, the unseen clients and what is shared."""
        digest = hashlib.sha256()
        for name, array in self._flat().items():
            digest.update(f"{name}{array.shape}".encode() + np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the arrays and the hash as .npz; the file appears whole or not at all."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **self._flat(), hash=np.array(self.hash))
        try:
            write_atomic(path, buffer.getvalue())
        except OSError as error:
            raise UserError(f"cannot write the partition {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> "Partition":
        """Read what :meth:`save` wrote and check it against its hash; the file may come from somebody else."""
        arrays = read_arrays(path)
        try:
            for name in SPLITS:
                if not _are_rows(arrays[name]) or not _are_rows(arrays[f"{name}_sizes"]):
                    raise ValueError(f"{name} has no row numbers")
            ends = {name: np.cumsum(arrays[f"{name}_sizes"])[:-1] for name in SPLITS}
            rows = {name: tuple(np.split(arrays[name], ends[name])) for name in SPLITS}
            unseen = tuple(int(client) for client in arrays["unseen"])
            shared = {name: arrays[name] for name in SHARED if name in arrays}
            partition = cls(**rows, unseen=unseen, shared=shared, base_classes=int(arrays.get("base_classes", 0)))
            whole = partition.hash == str(arrays["hash"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise UserError(f"partition file {path} cannot be read ({error}); make it again") from error
        if not whole:
            raise UserError(f"partition file {path} does not match its hash; make it again")
        return partition

    def _flat(self) -> dict[str, Any]:
        flat = {"unseen": np.array(self.unseen, np.int64)}
        for name in SPLITS:
            rows: tuple[np.ndarray, ...] = getattr(self, name)
            flat[name] = np.concatenate([*rows, np.empty(0, np.int64)])
            flat[f"{name}_sizes"] = np.array([len(part) for part in rows], np.int64)
        flat |= self.shared
        return flat | ({"base_classes": np.array(self.base_classes)} if self.base_classes else {})


def make_partition(spec: PartitionSpec, dataset: Dataset, seed: int, val_fraction: float = 0.0) -> Partition:
    """Divide the data set among clients: the same spec, data and seed give the same rows on every machine.

    Args:
        spec: what :func:`parse_partition` makes of a text such as ``"classes:s=10,shots=16"``.
        dataset: its labels, domains and split are used; its images are not.
        seed: another seed gives another division; zero is a seed like any other.
        val_fraction: the share of every client's training rows that is held out, as tuning does.

    ``imbalance`` thins out the training images before they are divided. ``shots`` are drawn next, then
    ``val_fraction`` of each client's remaining train rows move to val, in proportion to its classes. Within every
    class, shots and val keep the client's mix of domains up to rounding. The rows of fewer ``shots`` are a subset of
    the rows of more; the same holds for ``test_shots``, which cut shared test sets as well.
    """
    if not 0 <= val_fraction < 1:
        raise UserError(f"val_fraction={val_fraction} must be at least 0 and below 1")
    part, part_rows = training_part(spec, dataset)
    if spec.imbalance < 1:
        part, part_rows = long_tailed(part, part_rows, spec.imbalance, numpy_rng(seed, "partition", "long tail"))
    train, test = ([part_rows[rows] for rows in split] for split in spec.split(part, seed))
    shared = shared_test_sets(spec, dataset)
    labels, domains = np.asarray(dataset.labels), np.asarray(dataset.domains)
    if spec.shots:
        train = [few_shots(rows, labels, domains, spec.shots, _rng(seed, "shots", k)) for k, rows in enumerate(train)]
    if spec.test_shots:
        rngs = (_rng(seed, "test shots", k) for k in range(len(test)))
        test = [few_shots(rows, labels, domains, spec.test_shots, rng) for rows, rng in zip(test, rngs, strict=True)]
        for name, rows in shared.items():
            rng = numpy_rng(seed, "partition", "test shots", name)
            shared[name] = few_shots(rows, labels, domains, spec.test_shots, rng)
    _check_sizes(spec, dataset, train, test, least_train=2 if val_fraction else 1)
    val = [held_out(rows, labels, domains, val_fraction, _rng(seed, "val", k)) for k, rows in enumerate(train)]
    train = [np.setdiff1d(rows, val_rows) for rows, val_rows in zip(train, val, strict=True)]
    trained_on = 0 if spec.novel == "none" else part.num_classes
    return Partition(tuple(train), tuple(test), tuple(val), _unseen(spec, len(train), seed), shared, trained_on)


def _are_rows(array: np.ndarray) -> bool:
    return array.dtype == np.int64 and array.ndim == 1 and bool((array >= 0).all())


def _rng(seed: int, what: str, client: int) -> np.random.Generator:
    return numpy_rng(seed, "partition", what, client)


def _unseen(spec: PartitionSpec, clients: int, seed: int) -> tuple[int, ...]:
    if spec.unseen == "none":
        return ()
    if clients < 2:
        raise UserError(f"partition '{spec}': unseen={spec.unseen} needs at least 2 clients, the data give {clients}")
    order = np.arange(clients)
    if spec.unseen == "half":
        order = numpy_rng(seed, "partition", "unseen").permutation(clients)
    return tuple(sorted(int(client) for client in order[clients - clients // 2 :]))


def _check_sizes(spec: PartitionSpec, dataset: Dataset, train: Rows, test: Rows, least_train: int) -> None:
    for split, parts, least in (("train", train, least_train), ("test", test, 1)):
        sizes = [len(rows) for rows in parts]
        if min(sizes) < least:
            raise UserError(
                f"partition '{spec}' of {dataset.name!r} leaves client {int(np.argmin(sizes))} with "
                f"{min(sizes)} {split} images, at least {least} needed; use fewer clients or other values"
            )
