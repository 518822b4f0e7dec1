"""Cells: complete, checked, and named by what they say."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.running.cell import LATER_FIELDS, Cell, cell_from_json, make_cell

MICRO = BackboneSpec("micro-vit", "random", 32)


def glyph_cell(**changes: object) -> Cell:
    arguments: dict[str, object] = {
        "method": "fedvpt",
        "dataset": "glyph-domains",
        "partition": "domains:m=2",
        **changes,
    }
    return make_cell(backbone=MICRO, **arguments)  # type: ignore[arg-type]


def test_json_round_trip() -> None:
    cell = glyph_cell(seed=3, params={"lr": "0.05"}, protocol={"rounds": 7})
    assert cell_from_json(cell.to_json()) == cell


def test_defaults_and_text_give_the_same_hash() -> None:
    assert glyph_cell().hash == glyph_cell(params={"lr": "0.01", "length": "10"}, protocol={"rounds": 100}).hash


@pytest.mark.parametrize(
    ("changes", "method", "head", "finetune_epochs"),
    [
        ({}, "fedvpt", "local", 0),
        ({"policy": "global"}, "fedvpt", "global", 0),
        ({"policy": "global_then_ft"}, "fedvpt", "global", 5),
        ({"policy": "global_then_ft", "protocol": {"epochs": 2}}, "fedvpt", "global", 2),
        ({"policy": "global_then_ft", "protocol": {"finetune_epochs": 3}}, "fedvpt", "global", 3),
        ({"protocol": {"head": "global", "finetune_epochs": 1}}, "fedvpt", "global", 1),
        ({"policy": "local", "protocol": {"finetune_epochs": 3}}, "fedvpt", "local", 0),
        ({"method": "head-tune"}, "head-tune", "global", 0),
        ({"method": "head-tune", "protocol": {"finetune_epochs": 2}}, "head-tune", "global", 2),
        ({"method": "local-head"}, "head-tune", "local", 0),
        ({"method": "head-tune-ft"}, "head-tune", "global", 5),
        ({"method": "pfedbayespt"}, "pfedbayespt", "global", 0),
    ],
)
def test_a_cell_knows_who_owns_the_head(
    changes: dict[str, object], method: str, head: str, finetune_epochs: int
) -> None:
    cell = glyph_cell(**changes)
    assert (cell.method, cell.protocol.head, cell.protocol.finetune_epochs) == (method, head, finetune_epochs)


def test_two_spellings_of_a_partition_are_one_cell() -> None:
    a = glyph_cell(partition="dirichlet:clients=5,alpha=0.50")
    assert a.hash == glyph_cell(partition="dirichlet:alpha=0.5,clients=5").hash


@given(
    rounds=st.integers(1, 500),
    participation=st.floats(0.01, 1),
    seed=st.integers(0, 10),
    lr=st.floats(1e-6, 1),
)
def test_any_change_changes_the_hash(rounds: int, participation: float, seed: int, lr: float) -> None:
    cell = glyph_cell(seed=seed, params={"lr": lr}, protocol={"rounds": rounds, "participation": participation})
    changed = [
        dataclasses.replace(cell, seed=seed + 1),
        dataclasses.replace(cell, params={**cell.params, "lr": lr / 2}),
        dataclasses.replace(cell, protocol=dataclasses.replace(cell.protocol, rounds=rounds + 1)),
        dataclasses.replace(cell, protocol=dataclasses.replace(cell.protocol, participation=participation / 2)),
    ]
    assert len({cell.hash, *(other.hash for other in changed)}) == 5
    assert cell_from_json(cell.to_json()).hash == cell.hash


@pytest.mark.parametrize(
    "recipe",
    [
        {"optimiser": "adamw"},
        {"decay_biases": False},
        {"schedule": "cosine"},
        {"warmup": 2},
        {"clip": 1.0},
        {"head_input": "normalised"},
    ],
    ids=str,
)
def test_a_recipe_is_part_of_the_hash(recipe: dict[str, object]) -> None:
    cell = glyph_cell(protocol=recipe)
    assert cell.hash != glyph_cell().hash
    assert cell_from_json(cell.to_json()) == cell


def test_the_default_recipe_leaves_the_names_of_earlier_cells_as_they_are() -> None:
    """Published cells were written before these fields were there."""
    written = json.loads(glyph_cell().to_json())["protocol"]
    assert written.keys() & set(LATER_FIELDS) == set()
    assert set(LATER_FIELDS) < {field.name for field in dataclasses.fields(Protocol)}


def test_phase_follows_the_evaluated_data() -> None:
    assert glyph_cell().phase == "final"
    assert glyph_cell(protocol={"val_fraction": 0.1}).phase == "tune"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "fedvpt-deep"}, ["'fedvpt-deep'", "'fedvpt-d'"]),
        ({"dataset": "glyph-domain"}, ["'glyph-domain'", "'glyph-domains'"]),
        ({"partition": "domain:m=2"}, ["'domain'", "domains"]),
        ({"partition": "domains:m=x"}, ["m"]),
        ({"params": {"lenght": 3}}, ["'lenght'", "'length'"]),
        ({"params": {"lr": -1}}, ["lr = -1", "at least 0"]),
        ({"protocol": {"rounds": 0}}, ["rounds = 0", "at least 1"]),
        ({"protocol": {"round": 5}}, ["'round'", "'rounds'"]),
        ({"protocol": {"participation": 1.5}}, ["participation = 1.5", "[0, 1]"]),
        ({"seed": -1}, ["-1"]),
        ({"policy": "locl"}, ["'locl'", "'local'"]),
        ({"method": "local-head", "policy": "global"}, ["'local-head'", "'head-tune'"]),
        ({"protocol": {"head": "global"}, "policy": "local"}, ["'local'", "'global'"]),
        ({"protocol": {"finetune_epochs": 3}}, ["finetune_epochs = 3", "head = 'local'"]),
    ],
)
def test_bad_values_are_named_in_one_line(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        glyph_cell(**changes)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_cells_of_edited_code_differ_only_in_their_code() -> None:
    cell = glyph_cell()
    edited = dataclasses.replace(cell, code="edited")
    assert (edited.hash != cell.hash, edited.setup == cell.setup) == (True, True)
    assert glyph_cell(seed=1).setup != cell.setup


def test_evaluated_rounds_are_the_last_ten_and_a_grid() -> None:
    protocol = Protocol(rounds=25, last=10, eval_every=10)
    assert [r for r in range(1, 26) if protocol.evaluated(r)] == [10, *range(16, 26)]


def test_fewer_rounds_than_ten_are_all_evaluated() -> None:
    protocol = Protocol(rounds=3)
    assert [r for r in range(1, 4) if protocol.evaluated(r)] == [1, 2, 3]
