"""Counting FLOPs and the bytes that autograd keeps, on `meta` tensors or during a real computation."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.methods import State


@contextmanager
def counted() -> "Iterator[FlopCounter]":
    with FusedAttention(), FlopCounter() as counter:
        yield counter


@contextmanager
def kept_for_backward(backbone: FrozenViT, theta: State) -> Iterator[dict[Any, int]]:
    """Bytes of every storage that autograd keeps, each once; weights and theta are there anyway."""
    present = [*backbone.parameters(), *backbone.buffers(), *theta.values()]
    known = {tensor.untyped_storage()._cdata for tensor in present}
    storage_bytes: dict[Any, int] = {}
    alive = []  # an address is used again once its storage is gone

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            alive.append(storage)
            storage_bytes[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield storage_bytes


class FusedAttention(TorchFunctionMode):
    """Attention on `meta` by the kernel that real devices use: it keeps no (tokens x tokens) matrix for backward."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and args[0].is_meta:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, **(kwargs or {}))[0]
        return func(*args, **(kwargs or {}))


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts with torch's formulas; what `meta` tensors of the same shapes have shown before is not computed again.

    Shapes on `meta` are computed in Python, a millisecond each, and every block and step of a transformer repeats them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = (func, _signature(args), _signature(tuple(kwargs.items()))) if _makes_new_tensors(func) else None
        if key in _SEEN:
            flops, outputs = _SEEN[key]
            self.flops += flops
            return _empty(outputs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        flops = formula(*args, **kwargs, out_val=result) if formula else 0
        self.flops += flops
        if key is not None and _all_meta(result):
            _SEEN[key] = flops, _signature(result)
        return result


_SEEN: dict[Any, tuple[int, Any]] = {}  # FLOPs and signature of the result, by operation and arguments


@cache
def _makes_new_tensors(func: OpOverload) -> bool:
    """Neither a view of its arguments, whose storage counts once, nor a change of them."""
    schema = func._schema
    aliases = any(value.alias_info for value in (*schema.arguments, *schema.returns))
    return not aliases and func is not torch.ops.aten._unsafe_view.default


@cache
def _is_composite(func: OpOverload) -> bool:
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return func._overloadpacket not in flop_registry and func.has_kernel_for_dispatch_key(composite)


def _signature(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, tuple | list):
        return type(value), *map(_signature, value)
    return type(value), value  # 1, 1.0 and True are equal, but not the same argument


def _empty(signature: Any) -> Any:
    """Tensors on `meta` with the signature of an earlier result."""
    kind, *rest = signature
    if kind is Tensor:
        shape, stride, dtype, device = rest
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return None if kind is NoneType else kind(map(_empty, rest))


def _all_meta(result: Any) -> bool:
    if isinstance(result, tuple | list):
        return all(map(_all_meta, result))
    return result is None or (isinstance(result, Tensor) and result.is_meta)
