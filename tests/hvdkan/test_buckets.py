"""Buckets of gradients: what is cut where, and that all ranks start them in one order."""

import pytest
import torch

from hvdkan.backends.buckets import Buckets, cut


@pytest.mark.parametrize(
    ("sizes", "most", "buckets"),
    [
        ([1], 10, [range(0, 1)]),
        ([4, 4, 4], 12, [range(0, 3)]),
        ([4, 4, 4], 11, [range(1, 3), range(0, 1)]),
        ([4, 4, 4], 0, [range(2, 3), range(1, 2), range(0, 1)]),
        ([1, 50, 1], 10, [range(2, 3), range(1, 2), range(0, 1)]),
        ([50, 1, 1], 10, [range(1, 3), range(0, 1)]),
    ],
)
def test_buckets_are_cut_from_the_last_parameter_on(sizes, most, buckets):
    assert cut(sizes, most) == buckets


class Exchange:
    """Doubles what it averages, so that a bucket exchanged twice or never shows."""

    def __init__(self):
        self.events = []

    def average_(self, buffer):
        self.events.append(("whole", buffer.numel()))
        buffer *= 2

    def start(self, part):
        self.events.append(("start", part.numel()))
        return Started(self, part)


class Started:
    def __init__(self, exchange, part):
        self.exchange, self.part, self.given = exchange, part, part.clone()

    def test(self):
        return False

    def wait(self):
        assert torch.equal(self.part, self.given), "started before its gradients were there"
        self.exchange.events.append(("wait", self.part.numel()))
        self.part *= 2


class Layers(torch.nn.Module):
    """Layers of 1, 2 and 3 inputs, used in the order of their definition or against it."""

    def __init__(self, backwards=False):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(size, 1, bias=False) for size in (1, 2, 3))
        self.order = (2, 1, 0) if backwards else (0, 1, 2)

    def forward(self, x):
        for place in self.order:
            x = self.layers[place](x.expand(-1, self.layers[place].in_features))
        return x


def wrapped(model, most=0, overlap=True):
    exchange = Exchange()
    made = Buckets(model, torch.optim.SGD(model.parameters(), 0.1), exchange.average_, exchange.start, most, overlap)
    return made, exchange.events


def a_step(made, events):
    made.zero_grad()
    made.backward(made.model(torch.ones(2, 1)).sum())
    events.append("backward ends")
    made.exchange()


EACH = [("start", 3), ("start", 2), ("start", 1)]
WAITS = [("wait", 3), ("wait", 2), ("wait", 1)]


def test_buckets_start_during_backward():
    made, events = wrapped(Layers())
    for _ in range(2):
        a_step(made, events)
        assert events == [*EACH, "backward ends", *WAITS]
        events.clear()
    assert made.evidence() == {
        "buckets": 3, "bytes": [12, 8, 4], "overlap": True, "started_in_backward": 3, "compression": "none",
        "wire_dtype": "float32",
    }  # fmt: skip


def test_buckets_start_in_one_order_whatever_order_gradients_come_in():
    made, events = wrapped(Layers(backwards=True))
    a_step(made, events)
    assert events == [*EACH, "backward ends", *WAITS]


def test_each_gradient_is_exchanged_once():
    torch.manual_seed(1)
    made, events = wrapped(Layers())
    plain = Layers()
    plain.load_state_dict(made.model.state_dict())
    plain(torch.ones(2, 1)).sum().backward()
    a_step(made, events)
    for one, other in zip(made.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, 2 * other.grad)


def test_without_overlap_buckets_start_after_backward():
    made, events = wrapped(Layers(), overlap=False)
    a_step(made, events)
    assert events == ["backward ends", *EACH, *WAITS]
    assert made.evidence()["overlap"] is False


def test_one_bucket_is_one_call_after_backward():
    made, events = wrapped(Layers(), most=100)
    a_step(made, events)
    assert events == ["backward ends", ("whole", 6)]
    assert made.whole
    assert made.evidence()["overlap"] is False


def test_paused_steps_exchange_nothing_and_leave_nothing_behind():
    made, events = wrapped(Layers())
    with made.paused():
        a_step(made, events)
    assert events == ["backward ends"]
    events.clear()
    a_step(made, events)
    assert events == [*EACH, "backward ends", *WAITS]


def test_a_parameter_without_gradient_does_not_keep_a_bucket_back():
    model = Layers()
    made, events = wrapped(model)
    made.zero_grad()
    made.backward(model.layers[2](torch.ones(1, 3)).sum())
    made.exchange()
    assert events == [*EACH, *WAITS]


def test_gradients_under_way_are_not_added_to():
    made, _ = wrapped(Layers())
    made.zero_grad()
    made.backward(made.model(torch.ones(2, 1)).sum())
    with pytest.raises(RuntimeError, match="a second backward before exchange"):
        made.backward(made.model(torch.ones(2, 1)).sum())
