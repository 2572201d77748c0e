import math
from fractions import Fraction

import numpy as np
import pytest

from hvdkan.tasks import BUNDLED, DataError, Scaling, make_data
from hvdkan.tasks.readers import LARGEST
from hvdkan.tasks.tables import Table, divided, from_file

COLUMNS = ("a", "b", "y")


def table(rows=10, values=None):
    if values is None:
        a = np.arange(rows, dtype=float)
        values = np.column_stack([a, 100 - a**2, 3 * a + 1])
    return Table("t.csv", COLUMNS, np.asarray(values, dtype=float))


def refusal(*arguments):
    with pytest.raises(DataError) as raised:
        divided(*arguments)
    text = str(raised.value)
    assert text.startswith("t.csv: ")
    assert "\n" not in text
    return text.removeprefix("t.csv: ")


def a_column(data):
    """Column a of the training and the test rows in its units: it numbers the rows."""
    return [data.scaling.units(inputs)[:, 0].round().astype(int).tolist() for inputs in (data.inputs, data.test_inputs)]


def test_every_row_is_in_one_part_and_a_fifth_is_for_the_test():
    data = divided(table(), None, None, 0)
    train, test = a_column(data)
    assert (len(train), len(test), data.rows) == (8, 2, 10)
    assert sorted(train + test) == list(range(10))


def test_the_split_follows_the_seed_alone():
    one, same, other = (a_column(divided(table(50), None, None, seed)) for seed in (1, 1, 2))
    assert one == same != other


def test_fewer_samples_leave_the_test_set_alone():
    train, test = a_column(divided(table(), None, 3, 0))
    fewer, same = a_column(divided(table(), 4, 3, 0))
    assert (same, fewer) == (test, train[:4])


def test_scaling_is_of_the_training_rows_alone():
    """In exact arithmetic: the middle and half width of each input, mean and standard deviation of the target."""
    data = divided(table(), None, None, 0)
    train, test = a_column(data)
    a = [Fraction(one) for one in train]
    b, y = [100 - one**2 for one in a], [3 * one + 1 for one in a]
    mean = sum(y) / len(y)
    variance = sum((one - mean) ** 2 for one in y) / len(y)
    assert data.scaling.centers == (float((max(a) + min(a)) / 2), float((max(b) + min(b)) / 2))
    assert data.scaling.scales == (float((max(a) - min(a)) / 2), float((max(b) - min(b)) / 2))
    assert (data.scaling.target_center, data.scaling.target_scale) == (float(mean), math.sqrt(variance))
    assert (data.inputs.min(axis=0).tolist(), data.inputs.max(axis=0).tolist()) == ([-1, -1], [1, 1])
    assert data.scaling.target_units(data.test_targets[:, 0]) == pytest.approx([3 * one + 1 for one in test], rel=1e-15)
    # The first and the last row, were they in the test, lie outside.
    outside = [seed for seed in range(20) if np.abs(divided(table(), None, None, seed).test_inputs).max() > 1]
    assert outside


def test_a_scaling_comes_back():
    scaling = divided(table(), None, None, 0).scaling
    assert Scaling.from_dict(scaling.to_dict()) == scaling
    with pytest.raises(ValueError, match="one centre"):
        Scaling.from_dict({**scaling.to_dict(), "scales": [1.0]})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([[1, 2, 3]] * 2, "2 rows; at least 3 are needed"),
        (np.empty((0, 3)), "0 rows"),
        ([[row, 7, row] for row in range(9)], "constant in the 7 training rows: 'b'; leave them out (--inputs"),
        ([[1, row, 5] for row in range(9)], "constant in the 7 training rows: 'a', 'y'"),
        ([[row % 2 * 5e-324, row, row] for row in range(9)], "values too close to each other to scale in 'a'"),
    ],
)
def test_columns_that_cannot_be_scaled(values, text):
    assert text in refusal(table(values=values), None, None, 0)


def test_the_largest_values_are_scaled():
    data = divided(
        table(values=[[(-1) ** row * LARGEST, row, (-1) ** row * LARGEST] for row in range(9)]), None, None, 0
    )
    assert (np.abs(data.inputs[:, 0]) == 1).all()
    assert np.isfinite(data.targets).all()


def test_more_samples_than_rows():
    assert refusal(table(), 9, None, 0) == "--samples is 9; of 10 rows 8 are left beside 2 for the test"
    assert refusal(table(), None, 9, 0) == "--test-samples is 9; of 10 rows at least 2 must be left to train on"
    assert len(divided(table(), None, 8, 0).inputs) == 2


def test_a_digest_tells_values_names_and_order_apart():
    one = table()
    others = [
        Table("elsewhere.csv", COLUMNS, one.values.copy()),
        Table("t.csv", ("a", "c", "y"), one.values),
        Table("t.csv", COLUMNS, one.values[::-1]),
        Table("t.csv", COLUMNS, one.values + 1e-9),
        Table("t.csv", ("a", "y"), one.values.reshape(-1, 2)),
    ]
    assert [other.digest() == one.digest() for other in others] == [True, False, False, False, False]
    # Whatever is trained on: a study varies the number of samples.
    assert divided(one, 4, None, 0).digest == divided(one, None, None, 1).digest == one.digest()


def read(tmp_path, text, target="y", inputs=None):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return from_file(str(path), target, inputs)


def test_the_target_comes_last_and_inputs_as_asked(tmp_path):
    found = read(tmp_path, "y,a,b\n1,2,3\n4,5,6\n")
    assert (found.columns, found.values.tolist()) == (("a", "b", "y"), [[2, 3, 1], [5, 6, 4]])
    found = read(tmp_path, "y,a,who,b\n1,2,Anna,3\n", inputs=("b", "a"))
    assert (found.columns, found.values.tolist()) == (("b", "a", "y"), [[3, 2, 1]])


@pytest.mark.parametrize(
    ("header", "target", "inputs", "text"),
    [
        ("a,b,y", "z", None, "--target 'z' is no column; the columns are 'a', 'b', 'y'"),
        ("a,b,y", "y", ("a", "c"), "--inputs 'c' is no column"),
        ("a,y,a,y", "y", None, "columns that are there twice: 'a', 'y'"),
        ("a,,y", "y", None, "column 2 has no name"),
        ("y", "y", None, "no column beside the target 'y'"),
        ("a;b;y", "y", None, "the columns are 'a;b;y'; are its columns separated by ';'?"),
        (",".join(f"c{number}" for number in range(100)), "y", None, "'c7' and 92 more"),
        ("a" * 100, "y", None, "'" + "a" * 37 + "...'"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path, header, target, inputs, text):
    with pytest.raises(DataError) as raised:
        read(tmp_path, header + "\n", target, inputs)
    assert str(raised.value).startswith(str(tmp_path / "t.csv"))
    assert text in str(raised.value)


def test_a_header_alone(tmp_path):
    found = read(tmp_path, "a,y\n")
    with pytest.raises(DataError, match=r"t\.csv: 0 rows; at least 3"):
        divided(found, None, None, 0)


@pytest.mark.parametrize(("name", "rows", "inputs", "target"), [
    ("diabetes", 442, 10, "progression"), ("linnerud", 20, 3, "Weight"),
])  # fmt: skip
def test_what_scikit_learn_brings(name, rows, inputs, target):
    found = BUNDLED[name]()
    assert (found.values.shape, found.columns[-1], found.source) == ((rows, inputs + 1), target, name)
    data = make_data(name, None, None, 0.0, 0)
    assert (len(data.inputs) + len(data.test_inputs), data.digest) == (rows, found.digest())


def test_known_values_of_the_bundled_tables():
    """The first patient and the first man, from the data sets' descriptions."""
    assert BUNDLED["diabetes"]().values[0].tolist()[:4] == [59.0, 2.0, 32.1, 101.0]
    assert BUNDLED["diabetes"]().values[0, -1] == 151
    assert BUNDLED["linnerud"]().values[0].tolist() == [5, 162, 60, 191]
