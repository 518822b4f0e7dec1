"""How speed is read off: on a clock that only passes move."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.planning import calibration
from fedprompt.harness.planning.calibration import (
    Job,
    PassTime,
    count_passes,
    line,
    measure_overhead,
    prices,
    time_passes,
)
from fedprompt.harness.running.environment import RunEnvironment

SPEC = BackboneSpec("micro-vit", "random", 16)


def job(step: tuple[int, int] = (3, 16)) -> Job:
    images = {"train train": 1000, "evaluate": 100}
    return Job("fedvpt", {"length": 2}, SPEC, classes=4, batch_size=16, images=images, step=step)


def test_recipes_are_counted_and_timed_apart() -> None:
    """A step of another optimiser costs more; what a normalised head reads is kept for the backward pass."""
    plain, normalised = job(), replace(job(), recipe={"optimiser": "adamw", "clip": 1.0, "head_input": "normalised"})
    assert plain.family != normalised.family
    assert count_passes(plain).flops == count_passes(normalised).flops
    assert count_passes(plain).saved_bytes < count_passes(normalised).saved_bytes
    assert normalised.build().task.head_input == "normalised"
    assert time_passes(normalised, count_passes(normalised), RunEnvironment(), 0.1).keys() == normalised.images.keys()


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Training takes a second and 0.1 an image, evaluation 0.05 an image; the passes made are listed."""
    clock, made = SimpleNamespace(now=0.0), list[tuple[str, int]]()

    def works(_: Any, clients: int, batch: int, __: Any) -> dict[str, Callable[[], None]]:
        def go(kind: str, step: float, image: float) -> None:
            made.append((kind, clients * batch))
            clock.now += step + image * clients * batch

        return {
            "train train": lambda: go("train", 1.0, 0.1),
            "evaluate": lambda: go("evaluate", 0.0, 0.05),
        }

    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(calibration, "_works", works)
    return made


def test_enough_time_shows_the_part_of_a_pass_and_of_an_image(sizes: list[tuple[str, int]]) -> None:
    lines = time_passes(job(), count_passes(job()), RunEnvironment(), share=1000)
    assert (lines["train train"].step, lines["train train"].image) == pytest.approx((1.0, 0.1))
    assert (lines["evaluate"].step, lines["evaluate"].image) == pytest.approx((0.0, 0.05))
    assert max(size for _, size in sizes) == 48


def test_little_time_is_for_few_images_of_the_dearest_kind(sizes: list[tuple[str, int]]) -> None:
    """One image takes 1.1 s, and four might take four times that."""
    found = count_passes(job())
    lines = time_passes(job(), found, RunEnvironment(), share=2)
    assert sizes == [("train", 1)]
    assert lines["train train"] == PassTime(0.0, 1.1)
    assert lines["evaluate"].image == pytest.approx(1.1 * found.flops["evaluate"] / found.flops["train train"])


def test_a_single_size_tells_the_part_of_any_pass() -> None:
    assert line([(10, 3.0)], image=0.1) == PassTime(2.0, 0.1)
    assert line([(10, 3.0)], image=9.9) == PassTime(0.0, 0.3)


def test_noise_makes_no_part_negative() -> None:
    assert line([(10, 3.0), (20, 2.0)], image=0.1) == PassTime(2.0, 0.0)
    assert line([(10, 1.0), (20, 4.0)], image=0.1) == PassTime(0.0, 0.2)


def test_a_real_pass_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "BUDGET", 0.5)
    ((found,), started) = prices([job((1, 2))], RunEnvironment(), workers=1, timed=True)
    assert found.lines["train train"].step + found.lines["train train"].image > 0
    assert started == 0


@pytest.mark.slow
def test_workers_count_what_one_process_does() -> None:
    one, two = (prices([job()], RunEnvironment(), workers, timed=False)[0] for workers in (1, 2))
    assert one == two


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_the_start_of_a_suite_costs_more_than_a_round() -> None:
    found = measure_overhead("glyph-domains")
    assert found.start > found.round > 0
