"""Numbers as people read them."""

PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def scaled(value: float, unit: str = "", digits: str = ".3g") -> str:
    """``value`` with a prefix in steps of a thousand, such as `1.23 kB`; ``digits`` is its format."""
    power = 0
    while value >= 999.5 and power < len(PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:{digits}} {PREFIXES[power]}{unit}".rstrip()


def bytes_text(count: float) -> str:
    """How tables print a number of bytes: `768 B`, `3.1 kB`."""
    return scaled(count, "B", ".0f" if count < 999.5 else ".1f")


def duration(seconds: float) -> str:
    for size, name in ((365.25 * 86_400, "years"), (86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"
