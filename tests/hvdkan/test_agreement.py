import pytest

from hvdkan.agreement import agree_on_data
from hvdkan.backends.world import World
from hvdkan.config import ConfigError
from hvdkan.tasks import make_data
from hvdkan.tasks.tables import Table, divided

NAME = "the digest of t.csv"


class Ranks(World):
    """A world whose other ranks have said what they found."""

    def __init__(self, *said):
        self.said, self.size = said, len(said) + 1

    def allgather(self, value):
        return [value, *self.said]


@pytest.fixture(scope="module")
def data():
    return divided(Table("t.csv", ("a", "y"), make_data("squares", 9, 1, 0.0, 0).inputs), None, None, 0)


def test_the_same_data_are_trained_on(data):
    agree_on_data(Ranks({NAME: data.digest[:16]}), "t.csv", data)
    agree_on_data(World(), "t.csv", data)


def test_other_data_are_named_with_their_ranks(data):
    with pytest.raises(ConfigError) as raised:
        agree_on_data(Ranks({NAME: "ab"}, {NAME: data.digest[:16]}), "t.csv", data)
    assert str(raised.value) == (
        f"ranks have read different data: the digest of t.csv is {data.digest[:16]} on ranks 0, 2, ab on rank 1"
    )


def test_a_file_that_some_ranks_cannot_read_is_said_by_all(data):
    missing = "t.csv: No such file or directory"
    with pytest.raises(ConfigError, match=f"^rank 2 of 3: {missing}$"):
        agree_on_data(Ranks({NAME: data.digest[:16]}, missing), "t.csv", data)
    with pytest.raises(ConfigError, match=f"^{missing}$"):
        agree_on_data(Ranks(missing), "t.csv", missing)
