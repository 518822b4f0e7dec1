from fedprompt.harness.report.findings import conclusion
from fedprompt.harness.report.inference import Difference, Leader

LIMIT = 3.94


def difference(row: str, points: float, adjusted: float = 1.0, seeds: int = 2) -> Difference:
    return Difference(row, "none", points, points - 3.2, points + 3.1, adjusted / 3, adjusted, seeds, 20)


def gains(*differences: Difference) -> dict[str, Difference]:
    return {item.row: item for item in differences}


def test_one_gain() -> None:
    table = gains(difference("fedvpt-d", 4.2, 0.01), difference("b", 1.0), difference("c", -1.0))
    assert conclusion(table, None, LIMIT, "global", {"fedvpt-d": "FedVPT-D"}) == (
        "Under a global head, 1 of 3 methods gains over no prompt: FedVPT-D +4.2 points (1.0 to 7.3); no significant "
        "difference for the other 2 (smallest detectable difference 3.9 points)."
    )


def test_the_only_method() -> None:
    assert conclusion(gains(difference("a", 4.2, 0.01))) == "A gains +4.2 points (1.0 to 7.3) over no prompt."
    assert conclusion(gains(difference("a", 4.2))) == "No significant difference from no prompt."


def test_nothing_distinguishable() -> None:
    assert conclusion(gains(difference("a", 1.0), difference("b", 1.0)), None, LIMIT, "local") == (
        "Under a local head, no significant difference from no prompt for any of 2 methods (smallest detectable "
        "difference 3.9 points)."
    )


def test_several_gains_say_whether_the_best_is_better_than_the_second() -> None:
    table = gains(difference("a", 5.0, 0.01), difference("b", 4.0, 0.01))
    leader = Leader("a", "b", difference("a", 1.0))
    assert conclusion(table, leader) == (
        "2 of 2 methods gain over no prompt: a +5.0 points (1.8 to 8.1), b +4.0 points (0.8 to 7.1); "
        "a and b, the two best, do not differ significantly."
    )


def test_many_gains_are_counted() -> None:
    table = gains(*(difference(f"m{i}", 4.0 + i, 0.01) for i in range(5)))
    assert conclusion(table, policy="global_then_ft") == (
        "Under a global head that each client fine-tunes, 5 of 5 methods gain over no prompt; m4 gains most: +8.0 "
        "points (4.8 to 11.1)."
    )


def test_a_loss_has_its_sign() -> None:
    assert conclusion(gains(difference("a", -4.0, 0.01), difference("b", 0.0)), policy="local") == (
        "Under a local head, 1 of 2 methods loses against no prompt: a −4.0 points (−7.2 to −0.9); no significant "
        "difference for the other one."
    )


def test_a_missing_control_leaves_the_lead() -> None:
    leader = Leader("a", "b", difference("a", 6.0, 0.01))
    assert conclusion({}, leader, policy="local") == (
        "Under a local head, nothing can be compared with no prompt; a is better than b, the second, by 6.0 points."
    )


def test_one_seed_speaks_about_clients_only() -> None:
    text = conclusion(gains(difference("a", 4.0, 0.01, seeds=1)), policy="local")
    assert text.endswith("; with one seed this speaks about further clients, not about further seeds.")


def test_rows_without_numbers_are_no_methods_that_equal_the_control() -> None:
    missing = Difference("b", "none", *[float("nan")] * 5, 0, 0)
    assert "for any of 2 methods" in conclusion(gains(difference("a", 1.0), missing, difference("c", 1.0)))
