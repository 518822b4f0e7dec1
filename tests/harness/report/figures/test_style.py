"""How rows of the tables look in every figure."""

from support.report_suites import rows

from fedprompt.harness.report.figures.style import distinct_colours, looks
from fedprompt.harness.running.suite import Row
from fedprompt.methods import registry


def test_every_row_looks_different_also_without_colour() -> None:
    variants = [Row(f"variant-{i}", f"Variant {i}", "fedvpt") for i in range(7)]
    by_row = looks([*rows(*registry().names()), *variants])
    assert len(by_row) == len(registry().names()) + 7
    assert len({(look.colour, look.marker, str(look.line)) for look in by_row.values()}) == len(by_row)
    assert len({(look.marker, str(look.line)) for look in by_row.values()}) == len(by_row)


def test_rows_that_stand_out_have_different_colours() -> None:
    by_row = looks(rows(*registry().names()))
    first, second, *_, alike = [*by_row][:8]  # there are seven colours
    assert by_row[first].colour == by_row[alike].colour
    changed = distinct_colours(by_row, [first, second, alike])
    assert len({changed[key].colour for key in (first, second, alike)}) == 3
    assert changed[first] == by_row[first]
    assert changed[alike].marker == by_row[alike].marker


def test_a_method_looks_the_same_in_every_suite() -> None:
    assert looks(rows("sgpt"))["sgpt"] == looks(rows("fedvpt", "sgpt"))["sgpt"]
