import pytest

from fedprompt.core.errors import UserError, check_keys, unknown


def test_the_nearest_names_come_first_then_all() -> None:
    message = str(unknown("method", "fedvtp", ["head-tune", "fedvpt-d", "fedvpt"], "Or write one."))
    assert message == (
        "unknown method 'fedvtp'. Did you mean 'fedvpt' or 'fedvpt-d'? "
        "Known: fedvpt, fedvpt-d, head-tune. Or write one."
    )


def test_nothing_near_is_no_suggestion() -> None:
    assert str(unknown("method", "xyz", ["head-tune"])) == "unknown method 'xyz'. Known: head-tune."


def test_nothing_known() -> None:
    assert str(unknown("suite", "a", [])) == "unknown suite 'a'. Known: none."


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    assert str(UserError("cannot read 'a  b': bad\n  header\n")) == "cannot read 'a  b': bad header"


def test_unknown_keys_are_refused_with_the_nearest_known_one() -> None:
    check_keys({"rounds": 3}, {"rounds", "seeds"}, "suite 'x'")
    with pytest.raises(UserError, match=r"^unknown key in suite 'x' 'round'\. Did you mean 'rounds'\?"):
        check_keys({"seeds": 1, "round": 3}, {"rounds", "seeds"}, "suite 'x'")


def test_escape_sequences_of_what_is_quoted_have_no_effect() -> None:
    error = unknown("method", "\x1b[2Jfedvpt\u202e", ["\x07bell"])
    assert str(error).isprintable()
    assert "\\x1b[2J" in str(UserError("plugin says \x1b[2J"))
