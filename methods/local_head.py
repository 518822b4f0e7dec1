"""Local-Head: each client fits its own linear probe and sends nothing. A control the published tables lack."""

from fedprompt.methods.head_tune import HeadTune


class LocalHead(HeadTune):
    name = "local-head"
    title = "Local-Head (control)"
    order = 11
    paper = "control: what a client reaches alone"
    payload_formula = "0"
    head_mode = "local"
