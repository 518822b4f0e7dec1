"""How many clients train in one pass: as many as keep a step's activations within a fixed amount of memory."""

from dataclasses import replace

from fedprompt.core.errors import UserError
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.counting import counted, kept_for_backward
from fedprompt.harness.federation.shapes import first_batch, first_visit, on_meta
from fedprompt.methods import Method

STEP_MEMORY = 2 * 1024**3  # bytes of activations a stacked step may take; fixed, so that a cell is the same everywhere


def auto_stack(method: Method, batch_size: int) -> int:
    """The number of clients, by a rule of the shapes alone."""
    backbone = method.backbone
    if not {"images", "spatial tokens"} & method.needs:
        per_image = backbone.width * 64
    else:  # about 16 floats per token and channel are kept for the backward pass of one block, prompts included
        per_image = backbone.depth * (backbone.tokens + 12) * backbone.width * 16 * 4
    return max(1, STEP_MEMORY // (batch_size * per_image + (text_bytes(method) if "text" in method.needs else 0)))


def text_bytes(method: Method) -> int:
    """Bytes that a step keeps for its backward pass of each client, whatever its images: those of class texts."""
    try:
        shapes = on_meta(method)
        return max(0, 2 * _kept(shapes, 1) - _kept(shapes, 2))  # the part that does not grow with images
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"method {method.name!r}: its loss needs values where shapes are counted ({' '.join(str(error).split())}); "
            "do without where tensor.is_meta, or choose the clients per pass with stack=N."
        ) from error


def _kept(method: Method, images: int) -> int:
    """In the stage that keeps most."""
    _, theta = first_visit(method)
    batch = first_batch(method, images)
    start = {**theta, **hooks.begin_visit(method, theta, 2)}
    kept = [0]
    for stage in hooks.stages(method, 1):
        leaves = {name: theta[name].detach().requires_grad_() for name in stage.rates}
        with counted(), kept_for_backward(method.backbone, {**theta, **leaves}) as storage_bytes:
            method.loss({**theta, **leaves}, replace(batch, stage=stage.name, start=start))
        kept.append(sum(storage_bytes.values()))
    return max(kept)
