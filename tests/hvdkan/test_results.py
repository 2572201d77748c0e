import pytest

from hvdkan.config import Config
from hvdkan.probe import exposed
from hvdkan.results import Measured, failed, header, summary, window


def test_ranks_that_start_late_do_not_add_up():
    """Four ranks start 0 to 3 s late and each do 1000 samples in 1 s: 1000 samples/s, not 4000."""
    found = window([(float(late), late + 1.0) for late in range(4)], 4000)
    assert found == {"window_s": 4.0, "window_samples": 4000, "samples_per_s": 1000.0}


def test_a_step_takes_as_long_as_its_slowest_rank():
    fast = Measured([1.0, 5.0], [2.0], [1], (0.0, 6.0), 1, (1.0, 1))
    slow = Measured([3.0, 2.0], [4.0], [2], (0.5, 7.0), 2, (0.0, 3))
    found = summary([fast, slow])
    assert found["step_s"] == [3.0, 5.0]
    assert found["epoch_loss"] == [2.0]  # (2 + 4) / (1 + 2): by samples, not by ranks
    assert found["samples_seen"] == [3]
    assert found["test_loss"] == 0.25
    assert found["test_samples"] == 4
    assert found["exposed"] is None


def test_exposed_is_a_share_of_the_step_with_exchange_and_may_be_negative():
    assert exposed([4.0, 4.0, 9.0], [3.0, 3.0, 1.0])["fraction"] == 0.25
    assert exposed([2.0], [3.0])["fraction"] == -0.5


def test_a_failed_record_has_the_cause():
    try:
        raise OSError("no room\nat all")
    except OSError as error:
        found = failed(Config(label=("study=s", "block=2")), "id", 3, "host", error)
    assert found["status"] == "failed"
    assert (found["study"], found["block"]) == ("s", 2)
    assert found["error"]["message"] == "no room"
    assert found["error"]["rank"] == 3
    assert "test_results.py" in found["error"]["traceback"]


def test_labels_do_not_leak_into_the_config():
    assert "label" not in header(Config(), "id", "ok")["config"]


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_header_has_every_key(status):
    from hvdkan.record import KEYS

    assert set(KEYS) <= set(header(Config(), "id", status))
