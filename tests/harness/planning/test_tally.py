"""Counting a schedule as arrays gives what following it client by client gives."""

import math
from collections import Counter
from itertools import chain

import pytest

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.datasets import make_partition, parse_partition
from fedprompt.harness.federation.policy import head_owner, is_finetuned
from fedprompt.harness.federation.schedule import schedule, shared_splits
from fedprompt.harness.planning.data import published
from fedprompt.harness.planning.tally import Deal, Passes, Visitor, Workload, visitor, workload
from fedprompt.harness.running.cell import Cell, make_cell

DATA = published("cifar100")
CASES = {
    "one stack": ("classes:s=10,clients=20", {"rounds": 3}),
    "few of many, with heads of their own": (
        "dirichlet:alpha=0.3,clients=50",
        {"rounds": 30, "participation": 0.06, "stack": 4, "eval_every": 7, "head": "local"},
    ),
    "read twice": (
        "classes:s=5,clients=40,shots=3",
        {"rounds": 5, "participation": 0.1, "stack": 3, "head": "global", "finetune_epochs": 2, "batch_size": 4},
    ),
    "unseen": ("classes:s=10,clients=20,unseen=half", {"rounds": 4, "participation": 0.3, "stack": 4}),
    "held out": ("classes:s=10,clients=20", {"rounds": 4, "val_fraction": 0.5, "participation": 0.3, "stack": 3}),
}


def followed(visiting: Visitor, seed: int, deal: Deal) -> Counter[str]:
    """Images, steps and clients of each kind of pass, summed client by client."""
    protocol, total = visiting.protocol, Counter[str]()

    def add(kind: str, sizes: list[int], once: bool = False) -> None:
        steps = math.ceil(max(sizes) / protocol.batch_size)
        total.update({f"{kind} images": sum(sizes), f"{kind} steps": steps})
        total[f"{kind} clients"] += len(sizes) * (1 if once else steps)

    members, unseen = deal.members.tolist(), deal.unseen.tolist()
    shared = shared_splits(deal.shared, visiting.method)
    for round_ in schedule(protocol, seed, members, unseen, visiting.stack, shared):
        for stack in round_.stacks:
            add("trained", [int(deal.train[client]) for client in stack])
        for evaluation in round_.evaluations:
            for clients, epochs in chain.from_iterable(evaluation.stacks):
                train = [int(deal.train[client]) for client in clients]
                if not is_finetuned(evaluation.policy) or head_owner(evaluation.policy) == "none":
                    # what fine-tuned heads read, another reading has passed
                    add("evaluated", [int(deal.test[client]) for client in clients], once=True)
                if evaluation.unseen:
                    add("unseen", train)
                if epochs:
                    add(f"adapted {epochs}", train)
    return total


def counts(work: Workload) -> Counter[str]:
    passes: dict[str, Passes] = {
        "trained": work.trained,
        "evaluated": work.evaluated,
        "unseen": work.unseen,
        **{f"adapted {epochs}": adapted for (epochs, _), adapted in work.adapted.items()},
    }
    return Counter({f"{kind} {name}": value for kind, found in passes.items() for name, value in vars(found).items()})


@pytest.mark.parametrize("case", CASES)
def test_arrays_count_what_the_schedule_says(case: str) -> None:
    partition, protocol = CASES[case]
    cell: Cell = make_cell(
        "fedvpt", "cifar100", partition, BackboneSpec("micro-vit", "random", 32), 1, {}, {"epochs": 2, **protocol}
    )
    dealt = make_partition(parse_partition(cell.partition), DATA, cell.seed, cell.protocol.val_fraction)
    deal = Deal(DATA, dealt, cell.protocol)
    visiting = visitor(cell, 100, len(deal.train))
    expected = followed(visiting, cell.seed, deal)
    assert +counts(workload(visiting, cell.seed, deal)) == +expected
    assert expected["trained images"] > 0
