"""Numbers and foreign text as a reader sees them. Text from records is cleaned here and escaped in ``page``."""

from __future__ import annotations

import json
import math
import unicodedata

NOT_AVAILABLE = "n/a"


def number(value: object) -> float:
    """A float, NaN for anything that is not a number (booleans included)."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number that no float can hold
        return math.nan


def shown(value: object, digits: int = 3) -> str:
    """A cell or a number in a sentence: ``digits`` significant digits, thousands separated, ``n/a`` for no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOT_AVAILABLE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _rounded(value, digits)
    return clean(value)


def _rounded(value: float, digits: int) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    magnitude = math.floor(math.log10(abs(rounded)))
    if not -4 <= magnitude < 9:
        return f"{value:.{digits - 1}e}"
    return f"{rounded:,.{max(0, digits - 1 - magnitude)}f}"


def clean(value: object) -> str:
    """Text without control characters and lone surrogates, which neither SVG nor UTF-8 can hold."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        " " if character in "\n\r\t" else "\ufffd" if unicodedata.category(character) in ("Cc", "Cs") else character
        for character in text
    )


def shortened(value: object, limit: int = 60) -> str:
    text = clean(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def compact(value: object, limit: int = 200) -> str:
    """Nested evidence on one line: ``key: value; key: value``."""
    if isinstance(value, dict):
        text = "; ".join(f"{key}: {_inner(item)}" for key, item in value.items())
    else:
        text = _inner(value)
    return shortened(text, limit)


def _inner(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_inner(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """``1 launch``, ``3 launches``."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {plural or noun + ('es' if noun.endswith(('s', 'ch')) else 's')}"


def listed(items: list[str], limit: int = 8) -> str:
    """``a, b and c``; a long list is cut and says by how much."""
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit:,} more"
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
