"""Kinds of settings: each reads a value from text, checks it, and refuses it in one line with the valid choices."""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

from hvdkan.tasks import READERS

LABELS = ("study", "block", "order", "cell", "variant", "attempt", "launch_id")


class ConfigError(ValueError):
    """A setting that cannot be used; the message is one line that names the value and the valid choices."""


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


class Kind:
    """A kind of setting. ``read`` turns text into a value, ``check`` returns the value or raises ConfigError."""

    wanted = ""
    placeholder = "TEXT"

    def read(self, text: str) -> Any:
        return text

    def check(self, name: str, value: Any) -> Any:
        return value

    def refuse(self, name: str, value: Any) -> NoReturn:
        raise ConfigError(f"{name} is {shown(value)}; it must be {self.wanted}")


class Choice(Kind):
    def __init__(self, *options: str):
        self.options = options
        self.wanted = "one of " + ", ".join(options)
        self.placeholder = "{" + ",".join(options) + "}" if len(options) < 9 else "NAME"

    def check(self, name, value):
        return value if isinstance(value, str) and value in self.options else self.refuse(name, value)


class Whole(Kind):
    placeholder = "N"

    def __init__(self, minimum: int, maximum: int = 10**9):
        self.minimum, self.maximum = minimum, maximum
        self.wanted = f"a whole number of at least {minimum} and at most {maximum}"

    def read(self, text):
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else text

    def check(self, name, value):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not self.minimum <= value <= self.maximum:
            self.refuse(name, value)
        return value


class Number(Kind):
    placeholder = "X"

    def __init__(self, minimum: float, *, above: bool = False):
        self.minimum, self.above = minimum, above
        self.wanted = f"a number {'above' if above else 'of at least'} {minimum:g}"

    def read(self, text):
        try:
            return float(text)
        except ValueError:
            return text

    def check(self, name, value):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.refuse(name, value)
        if value < self.minimum or (self.above and value == self.minimum):
            self.refuse(name, value)
        return float(value)


class Wholes(Kind):
    """One whole number or several, as in ``32`` or ``32,16``."""

    maximum = 10**6
    wanted = f"whole numbers of at least 1 and at most {maximum}, separated by commas"

    def refuse(self, name, value):
        super().refuse(name, ",".join(map(str, value)) if isinstance(value, tuple) else value)

    def read(self, text):
        return tuple(int(part) if re.fullmatch(r"[+-]?\d{1,18}", part.strip()) else part for part in text.split(","))

    def check(self, name, value):
        values = (value,) if isinstance(value, int) else value
        if not isinstance(values, list | tuple) or not values:
            self.refuse(name, value)
        for item in values:
            if not isinstance(item, int) or isinstance(item, bool) or not 1 <= item <= self.maximum:
                self.refuse(name, value)
        return tuple(values)


class Text(Kind):
    wanted = "a text of one line that is not empty"

    def check(self, name, value):
        if not isinstance(value, str) or not value or any(character in value for character in "\n\r\0"):
            self.refuse(name, value)
        return value


class File(Text):
    placeholder = "FILE"


class TableFile(File):
    wanted = f"the name of a file that ends in {', '.join(READERS)}"

    def check(self, name, value):
        value = super().check(name, value)
        return value if value.lower().endswith(tuple(READERS)) else self.refuse(name, value)


class Columns(Kind):
    """Names of columns, separated by commas, each once."""

    wanted = "names of columns, separated by commas, each once"
    placeholder = "A,B,..."

    def read(self, text):
        return tuple(part.strip() for part in text.split(","))

    def check(self, name, value):
        if not isinstance(value, list | tuple) or not value or len(set(map(str, value))) < len(value):
            self.refuse(name, value)
        return tuple(Text().check(name, item) for item in value)


class Labels(Kind):
    wanted = f"NAME=VALUE with NAME one of {', '.join(LABELS)}"

    def check(self, name, value):
        for item in value:
            label, equals, _ = str(item).partition("=")
            if not equals or label not in LABELS:
                self.refuse(name, item)
        return tuple(value)


class Switch(Kind):
    wanted = "true or false"

    def check(self, name, value):
        return value if isinstance(value, bool) else self.refuse(name, value)
