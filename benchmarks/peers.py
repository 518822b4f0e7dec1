"""`make perf-peers`: FedVPT-D by this suite, by a plain loop, in Flower's simulation with Ray and in pfl-research.

All train the same prompts and head from the same values on the same batches with the same weights of the backbone, and
average by numbers of images; the run fails if they end with other parameters. Every way says when a round has ended:
the first round is counted as start-up, and what the others take is told. CPU seconds are those of this process and all
below it, because Flower's work is done by Ray's processes, on all cores at once; the other ways use one.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from plain_loop import forward, round_of, train_client
from rich.console import Console
from rich.table import Table
from speed import federation

from fedprompt.core.rng import torch_rng
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import State

CLIENTS, IMAGES, ROUNDS, TOLERANCE = 10, 32, 6, 1e-4
NAMES = ("prompts", "head.weight", "head.bias")
Ended = Callable[[], None]  # called after every round
Runner = Callable[[Federation, Ended], State]


def ours(ready: Federation, ended: Ended) -> State:
    state = ready.start()
    for _ in range(ROUNDS):
        ready.step(state)
        ended()
    return state.server


def plain(ready: Federation, ended: Ended) -> State:
    server = ready.start().server
    for round_ in range(1, ROUNDS + 1):
        server = round_of(ready, server, ready.members, round_)
        ended()
    return server


def flower(ready: Federation, ended: Ended) -> State:
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
            ended()
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
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return {name: torch.from_numpy(array) for name, array in zip(NAMES, final[-1], strict=True)}


def pfl_research(ready: Federation, ended: Ended) -> State:
    """Its simulated backend in this process. A client's images come in the order that the harness would give them."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    vit, protocol, rate = ready.method.backbone, ready.protocol, ready.method.params.lr
    visits: dict[int, int] = {}

    class Prompted(torch.nn.Module):
        prompts: torch.Tensor
        head_weight: torch.Tensor
        head_bias: torch.Tensor

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

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            ended()
            return False, Metrics()

    def dataset(client: int) -> Any:
        visits[client] = visits.get(client, 0) + 1
        order = torch_rng(ready.seed, "batches", visits[client], client)
        (batch,) = ready.data.epoch([client], IMAGES, [order], [torch.Generator()], "train")
        return Dataset((batch.images, batch.labels[0]), user_id=str(client))

    module = Prompted()
    create = partial(torch.optim.SGD, lr=rate, momentum=protocol.momentum, weight_decay=protocol.weight_decay)
    model = PyTorchModel(module, create, torch.optim.SGD(module.parameters(), lr=1.0))
    turns = iter([client for _ in range(ROUNDS + 1) for client in ready.members])
    data = FederatedDataset(dataset, lambda: next(turns))
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS, evaluation_frequency=10**6, train_cohort_size=CLIENTS, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(protocol.batch_size, protocol.epochs, rate),
        NNEvalHyperParams(None),
        [Clock()],
        send_metrics_to_platform=False,
    )
    return {name: getattr(module, name.replace(".", "_")).detach() for name in NAMES}


RUNNERS: dict[str, Runner] = {"fedprompt": ours, "plain loop": plain, "pfl-research": pfl_research, "Flower": flower}


class Timing(NamedTuple):
    """Seconds of a round; seconds before rounds take their time."""

    cpu: float
    wall: float
    start_up: float


def timed(run: Runner, ready: Federation) -> tuple[Timing, State]:
    """With the last parameters."""
    cpu_of: dict[int, float] = {}  # by process; those that have ended count as well
    ends: list[tuple[float, float]] = []

    def look() -> None:
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                cpu_of[process.pid] = sum(process.cpu_times()[:2])
        ends.append((sum(cpu_of.values()), time.perf_counter()))

    look()
    state = run(ready, look)
    first, *others = np.diff(ends, axis=0)
    cpu, wall = np.mean(others, axis=0)[0], np.median(others, axis=0)[1]  # CPU time is told in steps of 10 ms
    return Timing(float(cpu), float(wall), float(max(0.0, first[1] - wall))), state


def main() -> None:
    torch.set_num_threads(1)
    os.environ["RAY_ADDRESS"] = "local"  # not a cluster of another version that happens to run here
    columns = ("batch size", "way", "CPU s per round", "over fedprompt", "seconds per round", "over fedprompt")
    table = Table(*columns, "start-up, s", "largest difference")
    found: list[dict[str, Any]] = []
    for batch_size in [int(text) for text in sys.argv[1:]] or (32, 16, 4, 2):
        ready = federation("fedvpt-d", clients=CLIENTS, images=IMAGES, batch_size=batch_size)
        base, expected = timed(ours, ready)
        for name, run in RUNNERS.items():
            try:
                spent, state = timed(run, ready)
            except ImportError as error:
                table.add_row(str(batch_size), name, f"not installed: {error.name}")
                continue
            gap = max(float((state[key] - expected[key]).abs().max()) for key in NAMES)
            if gap > TOLERANCE:
                raise SystemExit(f"{name} ends with other parameters than fedprompt: they differ by {gap:.2g}.")
            base = spent if run is ours else base
            over = (spent.cpu, spent.cpu / base.cpu, spent.wall, spent.wall / base.wall)
            shown = [f"{number:.2f}" for number in over]
            table.add_row(str(batch_size), name, *shown, f"{spent.start_up:.1f}", f"{gap:.1g}")
            found.append({"batch_size": batch_size, "way": name, **spent._asdict(), "difference": gap})
    Console(width=132).print(table)
    path = Path("results/perf/peers.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
