"""Errors meant for the person at the keyboard: one line, the value, what is allowed, what to do next."""

import difflib
from collections.abc import Collection, Iterable


class UserError(Exception):
    """Bad input. The command line prints its message as one line and exits with code 2."""

    def __init__(self, message: str) -> None:
        """Quoted errors of libraries may have several lines; the message never does."""
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """An error for a wrong name: the nearest right ones first, then the whole list."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    nearest = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = ", ".join(names) or "none"
    return UserError(f"unknown {kind} {name!r}.{nearest} Known: {listed}.{' ' + hint if hint else ''}")


def check_keys(given: Iterable[str], allowed: Collection[str], where: str) -> None:
    """Refuse the first key that is not among ``allowed``; ``where`` names the place in the message."""
    for key in given:
        if key not in allowed:
            raise unknown(f"key in {where}", key, allowed)
