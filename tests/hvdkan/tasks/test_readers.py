import importlib.util
import io
import os
import sys
import zipfile

import numpy as np
import pytest

from hvdkan.tasks import readers
from hvdkan.tasks.data import DataError


def everything(columns):
    return list(range(len(columns)))


def saved(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def refusal(file, choose=everything):
    with pytest.raises(DataError) as raised:
        readers.read(file, choose)
    text = str(raised.value)
    assert text.startswith(f"{file}: ")
    assert "\n" not in text
    return text.removeprefix(f"{file}: ")


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,2\n-3.5,4e1\n",
        "\ufeffa,b\r\n1,2\r\n-3.5,4e1\r\n",
        'a,"b"\n"1", 2 \n\n-3.5,4e1',
    ],
)
def test_a_csv_as_programs_write_it(tmp_path, content):
    seen = []
    values = readers.read(saved(tmp_path, content), lambda columns: seen.extend(columns) or everything(columns))
    assert (seen, values.tolist()) == (["a", "b"], [[1.0, 2.0], [-3.5, 40.0]])


def test_numbers_are_read_to_the_last_bit(tmp_path):
    values = np.random.default_rng(0).normal(size=(50, 2)) * 10.0 ** np.arange(-25, 25)[:, None]
    text = "a,b\n" + "".join(f"{one!r},{other!r}\n" for one, other in values.tolist())
    assert (readers.read(saved(tmp_path, text), everything) == values).all()


def test_columns_that_are_not_chosen_are_not_checked(tmp_path):
    file = saved(tmp_path, "name,a,day,b\nAnna,1,,3\nBob,2,monday,4\n")
    assert readers.read(file, lambda columns: [columns.index("b"), columns.index("a")]).tolist() == [[3, 1], [4, 2]]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (b"a,b\n1,2\n3\n", "row 2 has 1 values, and the header 2"),
        (b"a,b\n1,2,3\n", "row 1 has 3 values, and the header 2"),
        (b"a,b\n1,\n2,3\n", "values missing, infinite or beyond 1e+150 in 'b' (row 1: 'missing')"),
        (b"a,b\n1,2\nnan,NA\n", "in 'a' (row 2: 'missing'), 'b' (row 2: 'missing'); fill them"),
        (b"a,b\n1,inf\n", "in 'b' (row 1: 'inf')"),
        (b"a,b\n1,1e999\n", "in 'b' (row 1: 'inf')"),
        (b"a,b\n1,-1e151\n", "in 'b' (row 1: '-1e+151')"),
        (b"a,b\nx,2\n1,y\n", "no numbers in 'a' (row 1: 'x'), 'b' (row 2: 'y'); leave them out (--inputs"),
        (b"a,b,c,d\nw,x,y,z\n", "'c' (row 1: 'y') and 1 more columns"),
        (b"a,b\n1_000,2\n", "no numbers in 'a' (row 1: '1_000')"),
        (b"a,b\n1,0x10\n", "no numbers in 'b' (row 1: '0x10')"),
        (b"a,b\n1,\x00\n", "no numbers in 'b' (row 1: '\\x00')"),
        (b"a,b\n1,2\n\xe9,4\n", "line 3 is not UTF-8 text; save the file as UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "line 1 is not UTF-8 text"),
        (b'a,b\n1,"2\n', "line 2: unexpected end of data"),
        (b'a,b\n1,"2"3\n', "line 2: ',' expected after '\"'"),
        (b"a,b\n1,\x1b[31mred\n", "'\\x1b[31mred'"),
        (b"a,b\n1," + b"2" * 1_000_001, "line 2 has more than 1,000,000 characters"),
        (b"a,b\n1," + b"x" * 200_000, "line 2: field larger than field limit (131072)"),
    ],
)
def test_what_is_no_table_of_numbers_is_said(tmp_path, content, text):
    assert text in refusal(saved(tmp_path, content))


def test_too_large_a_file_is_refused_before_the_memory_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MOST_VALUES", 10)
    text = "3 rows or more of 4 columns are too many; at most 10 values can be used"
    assert refusal(saved(tmp_path, "a,b,c,d\n" + "1,2,3,4\n" * 3)) == text
    assert refusal(saved(tmp_path, {"a": np.zeros(30)}, "t.npz")).endswith("bytes; at most 80 can be used")
    assert refusal(saved(tmp_path, {"a": np.zeros(11, "int8")}, "t.npz")).startswith("its arrays have")
    monkeypatch.setattr(readers, "MOST_VALUES", 100)
    text = "200 values are too many; at most 100 can be used"
    assert refusal(saved(tmp_path, {"a": np.zeros(200, "int8")}, "t.npz")) == text


def test_a_name_of_another_kind(tmp_path):
    assert refusal(saved(tmp_path, "a,b\n1,2\n", "t.xlsx")) == "its name must end in .csv, .npz, .parquet"


def test_what_is_no_file(tmp_path):
    assert refusal(str(tmp_path / "none.csv")) == "No such file or directory"
    os.mkfifo(tmp_path / "pipe.csv")
    assert refusal(str(tmp_path / "pipe.csv")) == "it is a pipe; it must be a file"
    (tmp_path / "directory.npz").mkdir()
    assert refusal(str(tmp_path / "directory.npz")) == "it is a directory; it must be a file"
    (tmp_path / "device.csv").symlink_to("/dev/zero")
    assert refusal(str(tmp_path / "device.csv")) == "it is a device; it must be a file"


def test_arrays_are_columns(tmp_path):
    file = saved(tmp_path, {"x": np.array([[1, 2], [3, 4]]), "y": np.array([True, False])}, "t.npz")
    seen = []
    values = readers.read(file, lambda columns: seen.extend(columns) or everything(columns))
    assert (seen, values.tolist()) == (["x[0]", "x[1]", "y"], [[1, 2, 1], [3, 4, 0]])


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"a": np.array([{}, {}])}, "no arrays of numbers can be read from it: Object arrays cannot be loaded"),
        ({"a": np.array(["x", "y"])}, "'a' is <U1; it must hold numbers"),
        ({"a": np.ones(2, complex)}, "'a' is complex128; it must hold numbers"),
        ({"a": np.float64(3)}, "'a' has the shape (); it must be [rows] or [rows, columns]"),
        ({"a": np.ones((2, 2, 2))}, "'a' has the shape (2, 2, 2)"),
        ({"a": np.ones(2), "b": np.ones((3, 2))}, "'a' has 2 rows and 'b' 3"),
        ({"a": np.array([1.0, np.nan])}, "in 'a' (row 2: 'missing')"),
    ],
)
def test_arrays_that_are_no_columns(tmp_path, arrays, text):
    assert text in refusal(saved(tmp_path, arrays, "t.npz"))


def test_archives_that_lie(tmp_path):
    """A header that promises more than there is, one cut short, one that is none, and a member that is no array."""
    file = tmp_path / "t.npz"

    def member(content):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.npy", content)

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**45,)})
    member(header.getvalue())
    assert "no arrays" in refusal(str(file)) or "memory" in refusal(str(file))
    member(b"not an array")
    assert refusal(str(file)) == "'a' is no array; it must hold numbers"
    np.savez(file, a=np.arange(1000.0))
    file.write_bytes(file.read_bytes()[:-200])
    assert refusal(str(file)).startswith("no arrays of numbers can be read from it: ")
    # A name's length that reaches over the data: zipfile quotes all of it.
    np.savez(file, a=np.arange(1000.0))
    content = bytearray(file.read_bytes())
    content[26:28] = (2000).to_bytes(2, "little")
    file.write_bytes(content)
    assert len(refusal(str(file))) < 200
    file.write_bytes(b"\x93NUMPY")
    assert refusal(str(file)) == "no arrays of numbers can be read from it: File is not a zip file"


def test_parquet_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = saved(tmp_path, b"PAR1", "t.parquet")
    assert refusal(file) == "pyarrow reads .parquet files and is not installed; pip install pyarrow"


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is optional and not installed")
def test_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    file = str(tmp_path / "t.parquet")
    columns = {"a": [1, 2], "word": ["x", "y"], "b": [0.5, 1.5], "gap": [1, None]}
    parquet.write_table(pyarrow.table(columns), file)
    assert readers.read(file, lambda names: [names.index("b"), names.index("a")]).tolist() == [[0.5, 1], [1.5, 2]]
    assert "no numbers in 'word' (string)" in refusal(file, lambda names: [0, 1])
    assert "in 'gap' (row 2: 'missing')" in refusal(file, lambda names: [0, 3])
    assert "no table can be read from it" in refusal(saved(tmp_path, b"PAR1", "u.parquet"))
