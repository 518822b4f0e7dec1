"""Whole rounds in the authors' code and in ours: visits, what the server makes of them, what clients predict then."""

from typing import Any

import torch
from torch import Tensor

from fedprompt.methods import Batch, State
from fedprompt.methods.fedmgp import slot_likeness
from fedprompt.methods.fedpr import FedPRShallow
from parity._feed import CLASSES, CLIENTS, Alter, Case, Lab, build, gap, lab, stacked
from parity._steps import Differences


def compared(where: str, ours: State, expected: State) -> Differences:
    return {f"{where}.{name}": gap(ours[name], tensor) for name, tensor in expected.items()}


def shares(sizes: Tensor) -> Tensor:
    return sizes / sizes.sum()


# -- SGPT -------------------------------------------------------------------------------------------------------------


def sgpt(case: Case, alter: Alter) -> Differences:
    """Rounds of two batches per client; in round 2 clients 0 and 2 only."""
    sizes = case.tensor("sizes")
    ours = lab(case, alter, counts=sizes.sum(1, keepdim=True).expand(-1, CLASSES) / CLASSES)
    first = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.sum(1).cumsum(0)[:-1]])

    def batch(clients: list[int], part: int, stage: str = "train") -> Batch:
        begins = (first + sizes[:, :part].sum(1)).tolist()
        rows = [begins[c] + row for c in clients for row in range(int(sizes[c, part]))]
        return ours.batch(rows, sizes[clients, part].tolist(), clients, stage)

    server = case.state("first.")
    server["counts"] = torch.zeros(len(server["keys"]), dtype=torch.int64)
    differences: Differences = {}
    for round_ in range(1, int(case.array("rounds")) + 1):
        clients = case.numbers(f"round{round_}.selected")
        received, stages = ours.received(server, clients), ours.visit_stages(int(case.array("epochs")))
        epochs = [[batch(clients, 0), batch(clients, 1)]] * sum(stage.epochs for stage in stages)
        theta = ours.visit(received, stages, epochs, case.json("sgd"), round_)
        weights = shares(sizes.sum(1)[clients].double())
        chosen = theta["counts"] - received["counts"]
        server = ours.aggregated(server, theta, received, weights, clients)
        everybody = list(range(len(sizes)))
        held = ours.received(server, everybody)
        differences |= compared(f"round{round_}.client", theta, case.state(f"round{round_}.client."))
        differences |= compared(f"round{round_}.server", server, case.state(f"round{round_}.server."))
        differences |= {
            f"round{round_}.choices": gap(chosen, case.tensor(f"round{round_}.choices")),
            f"round{round_}.counts": gap(server["counts"], case.tensor(f"round{round_}.counts")),
            f"round{round_}.logits": gap(ours.logits(held, batch(everybody, 0)), case.tensor(f"round{round_}.logits")),
        }
        for stage in ("shared", "group") if round_ == 1 else ():
            names = case.names(f"step.{stage}.grad.")
            loss, grads = ours.gradients(held, batch(everybody, 0, stage), names)
            differences[f"step.{stage}.loss"] = gap(loss, case.tensor(f"step.{stage}.loss"))
            differences |= compared(f"step.{stage}.grad", grads, case.state(f"step.{stage}.grad."))
    return differences


# -- pFedMoAP ---------------------------------------------------------------------------------------------------------


def pfedmoap_selection(case: Case, alter: Alter) -> Differences:
    """Which uploads are nearest; -1 stands for a client that the server does not know."""
    pool, chosen = case.tensor("pool"), case.tensor("chosen")
    settings = Case(case.file, "code/")
    ours = lab(settings, alter, torch.ones(len(pool), CLASSES), experts=int(case.array("experts")))
    known = torch.zeros(len(pool), dtype=torch.bool)
    known[case.numbers("known")] = True
    sent = ours.received({"context": pool[0], "pool": pool, "known": known}, range(len(pool)))
    there = chosen >= 0
    return {
        "present": gap(sent["present"], there),
        "experts": gap(sent["experts"][there], pool[chosen[there]]),
    }


def pfedmoap_flow(case: Case, alter: Alter) -> Differences:
    """Four rounds of five clients; what a client keeps are its gate and the experts of its last visit."""
    ours, sizes, sgd = lab(case, alter), case.tensor("sizes"), case.json("sgd")
    first = (sizes.cumsum(0) - sizes).tolist()

    def batch(clients: list[int]) -> Batch:
        rows = [first[c] + row for c in clients for row in range(int(sizes[c]))]
        return ours.batch(rows, sizes[clients].tolist(), clients)

    server: State = {**ours.first_server(), "context": case.tensor("first_context")}
    server["pool"] = server["pool"].double()
    gate = case.state("first.")
    personal: list[State] = [{**ours.first_personal(client), **gate} for client in range(len(sizes))]
    differences: Differences = {}
    for round_ in range(1, 5):
        clients, seen = case.numbers(f"round{round_}.selected"), case.numbers(f"round{round_}.seen")
        received = ours.received(server, clients)
        theta = {**stacked([personal[c] for c in clients]), **received}
        steps = int(sgd["steps"])
        theta = ours.visit(theta, ours.visit_stages(steps), [[batch(clients)]] * steps, sgd, round_)
        server = ours.aggregated(server, theta, received, shares(sizes[clients].double()), clients)
        for position, client in enumerate(clients):
            personal[client] = {name: theta[name][position] for name in personal[client]}
        held = {**ours.received(server, seen), **stacked([personal[c] for c in seen])}
        everybodys = stacked(personal)["gate.weight"]
        rows = [first[c] + row for c in seen for row in range(int(sizes[c]))]
        differences |= {
            f"round{round_}.contexts": gap(theta["context"], case.tensor(f"round{round_}.contexts")),
            f"round{round_}.aggregated": gap(server["context"], case.tensor(f"round{round_}.aggregated")),
            f"round{round_}.gates": gap(everybodys, case.tensor(f"round{round_}.gate.weight")),
            f"round{round_}.logits": gap(ours.logits(held, batch(seen)), case.tensor(f"round{round_}.logits")[rows]),
        }
    return differences


# -- FedMGP -----------------------------------------------------------------------------------------------------------


def fedmgp_likeness(case: Case, alter: Alter) -> Differences:
    theta = Case(case.file, "code_sign/").state("theta.")
    return {
        kind: gap(slot_likeness(theta[kind], theta[f"sent.{kind}"]), case.tensor(kind)) for kind in ("text", "visual")
    }


def fedmgp_draws(case: Case, count: int = 20_000) -> float:
    """Total variation between the authors' draws of two groups and ours: a statistical check only."""
    likeness, counts = case.tensor("likeness"), case.tensor("counts")
    settings = Case(case.file, "paper_sign/")
    ours = lab(settings, groups=len(likeness), tau=float(case.array("tau")))
    direction = torch.stack([likeness, (1 - likeness.square()).sqrt()], dim=-1)  # their cosine with (1, 0)
    rng = torch.Generator().manual_seed(0)
    drawn = ours.drawn_groups(direction, count, rng)
    found = torch.zeros_like(counts).index_put_((drawn[:, 0], drawn[:, 1]), torch.ones(count).double(), accumulate=True)
    return float((found / found.sum() - counts / counts.sum()).abs().sum() / 2)


# -- PromptFL, pFedPG, FedPR ------------------------------------------------------------------------------------------


def mean(case: Case, alter: Alter) -> Differences:
    """The server's mean of the selected uploads, weighted by samples."""
    settings = Case(case.file, "promptfl/")
    ours, selected = lab(settings, alter), case.numbers("selected")
    uploads = case.tensor("uploads")[selected]
    weights = shares(case.tensor("client_sizes")[selected].double())
    server = {"context": torch.zeros_like(uploads[0])}
    received = ours.received(server, selected)
    new = ours.aggregated(server, {"context": uploads}, received, weights, selected)
    return {"aggregated": gap(new["context"], case.tensor("aggregated"))}


def pfedpg(case: Case, alter: Alter) -> Differences:
    """Prompts of the generator, and the generator after clients have said how training moved them."""
    ours, clients = lab(case, alter), case.numbers("clients")
    server = {**case.state("first."), "visits": torch.zeros(int(case.array("num_clients")), dtype=torch.int64)}
    weights = torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)
    differences: Differences = {}
    for round_ in range(1, 5):
        received = ours.received(server, clients)
        differences[f"round{round_}.prompts"] = gap(received["prompt"], case.tensor(f"round{round_}.prompts"))
        trained = {"prompt": received["prompt"] - case.tensor(f"round{round_}.delta")}
        server = ours.aggregated(server, trained, received, weights, clients)
        differences |= compared(f"round{round_}.server", server, case.state(f"round{round_}.server."))
    return differences


def fedpr_lab(case: Case, alter: Alter, **options: Any) -> Lab:
    params = {"ratio": float(case.array("ratio")), "fro_normalize": True, **options}
    return Lab(case, build(alter(FedPRShallow), params))


def fedpr(case: Case, alter: Alter) -> Differences:
    """A step and the identity, projected along given prompts."""
    ours, prompts, step = fedpr_lab(case, alter), case.tensor("prompts"), case.tensor("step")
    differences = {"projected": gap(ours.projected(step, "prompt", {"prompt": prompts}, 2), case.tensor("projected"))}
    width = prompts.shape[-1]
    identity = torch.eye(width, dtype=torch.float64).expand(len(prompts), -1, -1)
    projector = ours.projected(identity, "prompt", {"prompt": prompts}, 2)[0]
    kept = projector.trace().square()  # of a projector over its Frobenius norm, which is the root of its rank
    differences["removed"] = float(abs(width - round(float(kept)) - int(case.array("removed"))))
    if "projector" in case:
        differences["projector"] = gap(projector, case.tensor("projector"))
    return differences


def removed_counts(case: Case) -> list[tuple[int, float, int, int]]:
    """Width, ratio, and how many directions the authors and we remove."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for width, officials in zip(case.numbers("width"), case.array("official").tolist(), strict=True):
        for ratio, official in zip(case.array("ratio").tolist(), officials, strict=True):
            prompt = torch.randn(1, 1, width, dtype=torch.float64, generator=rng)
            method = build(FedPRShallow, {"ratio": ratio})
            identity = torch.eye(width, dtype=torch.float64)[None]
            projector = Lab(case, method).projected(identity, "prompt", {"prompt": prompt}, 2)[0]
            found.append((width, ratio, official, round(width - float(projector.trace()))))
    return found


def fedpr_flow(case: Case, alter: Alter) -> Differences:
    """Visits in order; the projector is that of the prompt just received."""
    ours, rate = fedpr_lab(case, alter), float(case.array("rate"))
    received, gradients = case.tensor("received"), case.tensor("gradient")
    expected = case.tensor("after_with_projector_of_received")
    differences: Differences = {}
    for visit, round_ in enumerate(case.numbers("round")):
        prompt = received[visit : visit + 1]
        step = ours.projected(-rate * gradients[visit : visit + 1], "prompt", {"prompt": prompt}, round_)
        differences[f"visit {visit}"] = gap((prompt + step)[0], expected[visit])
    return differences


def fedpr_last_visits(case: Case, alter: Alter) -> Differences:
    """The same visits; the projector is that of the server's prompt after the client's last visit, as in their code."""
    ours, rate = fedpr_lab(case, alter, projector_of="last_visit"), float(case.array("rate"))
    rounds, clients = case.tensor("round"), case.tensor("client")
    sent, gradients, after = (case.tensor(name) for name in ("received", "gradient", "official_after"))
    server: State = {"prompt": sent[0], "visited": torch.zeros(CLIENTS, dtype=torch.bool)}
    server["last prompt"] = torch.zeros(CLIENTS, *sent[0].shape, dtype=sent.dtype)
    differences: Differences = {}
    for round_ in rounds.unique().tolist():
        visits = rounds == round_
        present = clients[visits].tolist()
        received = ours.received(server, present)
        step = ours.projected(-rate * gradients[visits], "prompt", received, round_)
        theta = {**received, "prompt": received["prompt"] + step}
        weights = torch.full((len(present),), 1 / len(present), dtype=torch.float64)
        server = ours.aggregated(server, theta, received, weights, present)
        differences[f"round{round_}.received"] = gap(received["prompt"], sent[visits])
        differences[f"round{round_}.trained"] = gap(theta["prompt"], after[visits])
    return differences
