"""What travels between the server and a client: measured of tensors, or derived of shapes before anything runs."""

from typing import NamedTuple

import torch

from fedprompt.core.rng import torch_rng
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.shapes import first_batch, first_visit, on_meta
from fedprompt.methods import Method, State


class Payload(NamedTuple):
    floats: int  # numbers of any type
    bytes: int


class Traffic(NamedTuple):
    """Of one client in one round."""

    first_down: Payload  # at the client's first visit, when a server may have less to send
    down: Payload
    up: Payload


def payload_of(state: State) -> Payload:
    """The payload of one client's tensors."""
    tensors = state.values()
    return Payload(sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors))


def traffic(method: Method) -> Traffic:
    """What ``method`` will send: its download, and the upload that follows it, on `meta`.

    How much is sent may depend on what the server knows (experts of other clients): on `meta` that is all there can be,
    and real tensors of a fresh server show how much it is in the beginning.
    """
    method = on_meta(method)
    received, theta = first_visit(method)
    theta |= hooks.end_visit(method, theta, [first_batch(method, 1)])
    upload = {name: tensor[0] for name, tensor in method.upload(theta, received).items()}
    fresh = method.init_server(torch_rng(0, "init", "server"))
    fresh = {name: torch.zeros_like(t, device="cpu") if t.is_meta else t for name, t in fresh.items()}
    first = hooks.download(method, fresh, [0])
    sent, sent_first = (hooks.sent_tensors(method, state, 0) for state in (received, first))
    return Traffic(payload_of(sent_first), payload_of(sent), payload_of(upload))
