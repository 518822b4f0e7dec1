"""Text for people: numbers with units, and foreign text that cannot act on what shows it."""

import unicodedata

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats, surrogates, separators of lines and paragraphs
JOINERS = "\u200c\u200d"  # formats that ordinary writing and emoji need


def visible(text: object, keep: str = "") -> str:
    r"""``text`` with control characters written out, so that it is safe on a terminal and in any file.

    Titles, names and messages that come from plugins, folders and servers may hold escape sequences that move the
    cursor, or marks that reverse the reading order. Pass them through this first, then escape for the target (HTML,
    TeX, a Markdown table) as usual. Characters in ``keep`` stay, for example ``"\n"`` in a text of several lines::

        >>> visible("red \x1b[31malert\x07")
        'red \\x1b[31malert\\x07'
    """
    return "".join(
        character
        if character in keep or character in JOINERS or unicodedata.category(character) not in INVISIBLE
        else character.encode("unicode_escape").decode()
        for character in str(text)
    )


def scaled(value: float, unit: str = "", digits: str = ".3g") -> str:
    """``value`` with a prefix in steps of a thousand: ``scaled(1234, "B")`` is `1.23 kB`.

    ``digits`` is the format of the number, as in an f-string.
    """
    power = 0
    while value >= 999.5 and power < len(PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:{digits}} {PREFIXES[power]}{unit}".rstrip()


def bytes_text(count: float) -> str:
    """How tables print a number of bytes: `768 B`, `3.1 kB`."""
    return scaled(count, "B", ".0f" if count < 999.5 else ".1f")


def duration(seconds: float) -> str:
    """A span of time in its largest fitting unit: `12.0 s`, `1.5 h`, `3.2 days`."""
    for size, name in ((365.25 * 86_400, "years"), (86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"
