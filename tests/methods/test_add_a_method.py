"""The method shown in the documentation works as it is shown."""

import re
from pathlib import Path

import torch

from fedprompt.harness.conformance import check_method
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import load_plugin, registry

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"


def documented_method(tmp_path: Path) -> str:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    file = tmp_path / "prox.py"
    file.write_text(code)
    (name,) = load_plugin(file)
    return name


def test_the_documented_method_conforms(tmp_path: Path) -> None:
    name = documented_method(tmp_path)
    assert [result.name for result in check_method(registry().get(name)) if not result.ok] == []


def test_its_limit_case_is_fedvpt(tmp_path: Path) -> None:
    """mu = 0 means FedVPT, as its help says, and mu > 0 does not."""
    prompts = {}
    for name, params in (("fedvpt", {}), (documented_method(tmp_path), {"mu": 0}), ("fedvpt-prox", {"mu": 5})):
        federation = toy_federation(registry().get(name), params)
        state = federation.start()
        federation.step(state)
        prompts[name, *params.values()] = state.server["prompt"]
    assert torch.equal(prompts[("fedvpt",)], prompts["fedvpt-prox", 0])
    assert not torch.equal(prompts[("fedvpt",)], prompts["fedvpt-prox", 5])
