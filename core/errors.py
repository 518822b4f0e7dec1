"""Errors meant for the person at the keyboard: one line, the value, what is allowed, what to do next."""

import difflib
from collections.abc import Collection, Iterable

from fedprompt.core.text import visible

# Synonyms that spelling similarity misses.
SYNONYMS = {
    "learning_rate": "lr",
    "head_learning_rate": "head_lr",
    "local_epochs": "epochs",
    "num_rounds": "rounds",
    "prompt_length": "length",
    "fraction": "participation",
    "frac": "participation",
}


class UserError(Exception):
    """Bad input: something that the user can put right.

    The command line prints the message as one line and exits with code 2, without a traceback. Write it so that it
    names the value, what is allowed and what to do next::

        raise UserError(f"{steps} steps are too few; give at least 1 (the default is 6000).")
    """

    def __init__(self, message: str) -> None:
        """Quoted errors and names may hold line breaks and escape sequences; the message never does."""
        super().__init__(visible(" ".join(line.strip() for line in message.splitlines())))


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """The error for a wrong name: the nearest right ones first, then the whole list. Raise what it returns.

    ``kind`` says what the name should be ("method", "key in suite 'x'"); ``hint`` is a further sentence. For
    ``unknown("method", "fedvtp", ["fedvpt", "sgpt"])`` the message is ``unknown method 'fedvtp'. Did you mean
    'fedvpt'? Known: fedvpt, sgpt.``
    """
    names = sorted(known)
    synonym = SYNONYMS.get(name.lower().replace("-", "_"), "")
    near = [synonym] if synonym in names else difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    nearest = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = ", ".join(names) or "none"
    return UserError(f"unknown {kind} {name!r}.{nearest} Known: {listed}.{' ' + hint if hint else ''}")


def check_keys(keys: Iterable[str], allowed: Collection[str], where: str) -> None:
    """Raise :func:`unknown` for the first key that is not ``allowed``; ``where`` names the place ("suite 'x'")."""
    for key in keys:
        if key not in allowed:
            raise unknown(f"key in {where}", key, allowed)
