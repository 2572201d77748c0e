"""What can go wrong, each with its exit status; a message is one line, with the tail of a log at most."""


class RehearsalError(Exception):
    """Base of all; ``status`` is the exit status."""

    status = 1


class Refused(RehearsalError):
    """Asked for something that cannot be: a value out of range, a missing package, no root."""

    status = 2


class NotUp(RehearsalError):
    """There is no cluster of that name, or its controller does not answer."""

    status = 3


class Failed(RehearsalError):
    """Something that should have worked did not."""

    status = 1
