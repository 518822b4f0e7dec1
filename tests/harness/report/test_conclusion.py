from fedprompt.harness.report.findings import conclusion
from fedprompt.harness.report.inference import Difference, Leader
from fedprompt.harness.report.power import Detectable

LIMIT = Detectable(3.94, 5.0, 3)


def difference(row: str, points: float, adjusted: float = 1.0, seeds: int = 2) -> Difference:
    return Difference(row, "none", points, points - 3.2, points + 3.1, adjusted / 3, adjusted, seeds, 20)


def gains(*differences: Difference) -> dict[str, Difference]:
    return {item.row: item for item in differences}


def test_one_gain() -> None:
    table = gains(difference("fedvpt-d", 4.2, 0.01), difference("b", 1.0), difference("c", -1.0))
    assert conclusion(table, None, LIMIT, "global", {"fedvpt-d": "FedVPT-D"}) == (
        "Under a global head, FedVPT-D gains 4.2 points over no prompt (95 % interval 1.0 to 7.3); none of the other 2 "
        "can be told from no prompt (smallest detectable difference 3.9 points)."
    )


def test_nothing_distinguishable() -> None:
    assert conclusion(gains(difference("a", 1.0), difference("b", 1.0)), None, LIMIT, "local") == (
        "Under a local head, none of 2 methods can be told from no prompt (smallest detectable difference 3.9 points)."
    )


def test_several_gains_name_whether_the_best_can_be_told_from_the_second() -> None:
    table = gains(difference("a", 5.0, 0.01), difference("b", 4.0, 0.01))
    leader = Leader("a", "b", difference("a", 1.0))
    assert conclusion(table, leader) == (
        "A (5.0 points, 95 % interval 1.8 to 8.1) and b (4.0 points, 95 % interval 0.8 to 7.1) gain over no prompt; "
        "a and b, the two best, cannot be told apart."
    )


def test_many_gains_are_counted() -> None:
    table = gains(*(difference(f"m{i}", 4.0 + i, 0.01) for i in range(5)))
    assert conclusion(table, policy="global_then_ft") == (
        "Under a global head that each client fine-tunes, 5 methods gain over no prompt, most of all m4 (8.0 points, "
        "95 % interval 4.8 to 11.1)."
    )


def test_a_loss_turns_the_interval() -> None:
    assert conclusion(gains(difference("a", -4.0, 0.01), difference("b", 0.0)), policy="local") == (
        "Under a local head, a loses 4.0 points against no prompt (95 % interval 0.9 to 7.2); the other one cannot be "
        "told from no prompt."
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
    assert "None of 2 methods" in conclusion(gains(difference("a", 1.0), missing, difference("c", 1.0)))
