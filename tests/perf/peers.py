"""`make perf-peers`: FedVPT-D by this suite, by a plain loop, in Flower's simulation with Ray and in pfl-research.

All train the same prompts and head from the same values on the same batches with the same weights of the backbone, and
average by numbers of images; the run fails if they end with other parameters. Two numbers of rounds tell what a round
takes from what starting takes; seconds are wall-clock seconds, because Flower's work is done by Ray's processes.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedprompt.harness.core.rng import torch_rng
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.planning.plain_loop import forward, round_of, train_client
from fedprompt.harness.planning.speed import federation
from fedprompt.methods import State

CLIENTS, IMAGES, ROUNDS, TOLERANCE = 10, 32, 3, 1e-4
NAMES = ("prompts", "head.weight", "head.bias")
Runner = Callable[[Federation, int], State]


def ours(ready: Federation, rounds: int) -> State:
    state = ready.start()
    for _ in range(rounds):
        ready.step(state)
    return state.server


def plain(ready: Federation, rounds: int) -> State:
    server = ready.start().server
    for round_ in range(1, rounds + 1):
        server = round_of(ready, server, ready.members, round_)
    return server


def flower(ready: Federation, rounds: int) -> State:
    """A NumPyClient per supernode, FedAvg, one CPU for each of Ray's workers."""
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    batch_size = ready.protocol.batch_size
    final: list[list[np.ndarray]] = []

    class Client(NumPyClient):  # type: ignore[misc]
        def __init__(self, client: int) -> None:
            torch.set_num_threads(1)
            self.client = client

        def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
            local = federation("fedvpt-d", clients=CLIENTS, images=IMAGES, batch_size=batch_size)
            state = {name: torch.from_numpy(array.copy()) for name, array in zip(NAMES, parameters, strict=True)}
            trained = train_client(local, state, self.client, int(config["round"]))
            return [trained[name].numpy() for name in NAMES], local.data.size(self.client), {}

    def client_fn(context: Context) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    class Averaging(FedAvg):  # type: ignore[misc]
        def aggregate_fit(self, *args: Any) -> Any:
            parameters, metrics = super().aggregate_fit(*args)
            final[:] = [parameters_to_ndarrays(parameters)]
            return parameters, metrics

    def server_fn(_: Context) -> Any:
        server = ready.start().server
        strategy = Averaging(
            fraction_evaluate=0.0,
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters([server[name].numpy() for name in NAMES]),
            on_fit_config_fn=lambda round_: {"round": round_},
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return {name: torch.from_numpy(array) for name, array in zip(NAMES, final[-1], strict=True)}


def pfl_research(ready: Federation, rounds: int) -> State:
    """Its simulated backend in this process. A client's images come in the order that the harness would give them."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    vit, protocol, rate = ready.method.backbone, ready.protocol, ready.method.params.lr
    visits: dict[int, int] = {}

    class Prompted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in ready.start().server.items():
                self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(tensor.clone()))

        def loss(self, images: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
            features = forward(vit.vit, (images.to(vit.mean.dtype) - vit.mean) / vit.std, self.prompts)
            logits = torch.nn.functional.linear(features, self.head_weight, self.head_bias)
            return torch.nn.functional.cross_entropy(logits, labels)

        def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {}

    def dataset(client: int) -> Any:
        visits[client] = visits.get(client, 0) + 1
        order = torch_rng(ready.seed, "batches", visits[client], client)
        (batch,) = ready.data.epoch([client], IMAGES, [order], [torch.Generator()], "train")
        return Dataset((batch.images, batch.labels[0]), user_id=str(client))

    module = Prompted()
    create = partial(torch.optim.SGD, lr=rate, momentum=protocol.momentum, weight_decay=protocol.weight_decay)
    model = PyTorchModel(module, create, torch.optim.SGD(module.parameters(), lr=1.0))
    turns = iter([client for _ in range(rounds + 1) for client in ready.members])
    data = FederatedDataset(dataset, lambda: next(turns))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=10**6, train_cohort_size=CLIENTS, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(protocol.batch_size, protocol.epochs, rate),
        NNEvalHyperParams(None),
        send_metrics_to_platform=False,
    )
    return {name: getattr(module, name.replace(".", "_")).detach() for name in NAMES}


RUNNERS: dict[str, Runner] = {"fedprompt": ours, "plain loop": plain, "pfl-research": pfl_research, "Flower": flower}


def timed(run: Runner, ready: Federation, rounds: int) -> tuple[float, State]:
    begun = time.perf_counter()
    state = run(ready, rounds)
    return time.perf_counter() - begun, state


def main() -> None:
    torch.set_num_threads(1)
    os.environ["RAY_ADDRESS"] = "local"  # not a cluster of another version that happens to run here
    table = Table("batch size", "way", "seconds per round", "over fedprompt", "start-up, s", "largest difference")
    found: list[dict[str, Any]] = []
    for batch_size in [int(text) for text in sys.argv[1:]] or (32, 16, 4, 2):
        ready = federation("fedvpt-d", clients=CLIENTS, images=IMAGES, batch_size=batch_size)
        expected, base = ours(ready, 1 + ROUNDS), float("nan")
        for name, run in RUNNERS.items():
            try:
                first = statistics.median(timed(run, ready, 1)[0] for _ in range(1 if run is flower else 3))
                whole, state = timed(run, ready, 1 + ROUNDS)
            except ImportError as error:
                table.add_row(str(batch_size), name, f"not installed: {error.name}", "", "", "")
                continue
            gap = max(float((state[key] - expected[key]).abs().max()) for key in NAMES)
            if gap > TOLERANCE:
                raise SystemExit(f"{name} ends with other parameters than fedprompt: they differ by {gap:.2g}.")
            each = (whole - first) / ROUNDS
            base = each if run is ours else base
            start = max(0.0, first - each)
            table.add_row(str(batch_size), name, f"{each:.3f}", f"{each / base:.2f}", f"{start:.1f}", f"{gap:.1g}")
            found.append({"batch_size": batch_size, "way": name, "round": each, "start": start, "difference": gap})
    Console(width=112).print(table)
    path = Path("results/perf/peers.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
