"""Frozen backbones: vision transformers and CLIP towers, their weights, cached features and pretraining.

::

    spec = backbone_spec("micro-vit")  # checked without building anything; a cell records it
    vit = load_backbone(spec)
    features = vit.cls(images, edit=deep(prompts))  # uint8 images (n, 3, h, w), prompts (n, depth, T, d)

- ``backbone``: the frozen ViT, prompts as token edits; ``clip``, ``clip_resnet``, ``text``: the two towers of CLIP
- ``weights``, ``clip_weights``, ``open_clip_towers``, ``micro_clip``: from names and files to backbones
- ``features``, ``layer_inputs``: what frozen passes compute once
- ``pretraining``, ``pretraining_clip``: how the embedded backbones were trained; ``zero_shot``: the guard
"""
