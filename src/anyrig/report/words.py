"""Numbers and times as people read them, everywhere in the same form."""

from __future__ import annotations

from collections.abc import Mapping

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float) -> str:
    """Return the time in its largest whole unit: "12 s", "3 min", "5 h", "2 d"."""
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "now"


def clock(seconds: float) -> str:
    """Return "0:12", "12:40", "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def value(number: object) -> str:
    """Return a metric with four significant decimals, a count with separators, and anything else as it is."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return str(number)
    return (
        f"{number:,}" if isinstance(number, int) else f"{number:.4f}" if 1e-3 <= abs(number) < 1e6 else f"{number:.4g}"
    )


def values(named: Mapping[str, object], separator: str = ", ") -> str:
    """Return "accuracy 0.9712, loss 0.1031"."""
    return separator.join(f"{name} {value(number)}" for name, number in named.items())
