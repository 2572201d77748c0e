"""What an all-reduce says on the wire: rounds of messages for one rank, as pure data. No MPI, no numpy.

All positions are element numbers of one buffer that every rank holds, so that a schedule is the same for every element
type and for counts above 2**31.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple


class Send(NamedTuple):
    """``count`` elements from ``start``, to rank ``peer``."""

    peer: int
    start: int
    count: int


class Receive(NamedTuple):
    """``count`` elements from rank ``peer``, added to what lies at ``start``, or put in its place."""

    peer: int
    start: int
    count: int
    add: bool


@dataclass(frozen=True, slots=True)
class Round:
    """Messages that are under way at once. What arrives counts from the round's end on, added in the order listed.

    Sends read what the buffer holds when the round begins; no receive that overwrites meets a send of its round.
    """

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()


#: Rounds of one rank, one after the other. A message belongs to the same strand, and to the same place in the order of
#: messages between its two ranks, on both sides.
Strand = list[Round]
#: Strands run at once and in any order: each owns elements that no other touches.
Schedule = list[Strand]


def exchange(send: Send | None, receive: Receive | None) -> Round:
    """One message each way. An empty message is none: both sides know its count."""
    return Round(
        (send,) if send is not None and send.count else (),
        (receive,) if receive is not None and receive.count else (),
    )


def split_large(strand: Strand, limit: int) -> Strand:
    """The same strand with no message of more than ``limit`` elements, cut alike on both sides."""

    def cut(message):
        for start in range(message.start, message.start + message.count, limit):
            yield message._replace(start=start, count=min(limit, message.start + message.count - start))

    return [
        Round(
            tuple(piece for send in step.sends for piece in cut(send)),
            tuple(piece for receive in step.receives for piece in cut(receive)),
        )
        for step in strand
    ]


def peers(schedule: Schedule) -> tuple[int, ...]:
    """The ranks that are sent to, ascending."""
    found = sorted(send.peer for strand in schedule for step in strand for send in step.sends)
    return tuple(peer for peer, _ in groupby(found))


def elements_sent(schedule: Schedule) -> int:
    return sum(send.count for strand in schedule for step in strand for send in step.sends)
