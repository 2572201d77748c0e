"""Files that appear complete or not at all, and what cannot be one."""

import os
import socket
import stat

import pytest

from hvdkan.files import replacing, why_unwritable


def put(path, text):
    with replacing(path) as stream:
        stream.write(text)


def test_a_new_file_has_ordinary_permissions_and_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "file"
    put(path, b"whole")
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    assert path.read_bytes() == b"whole"
    assert path.stat().st_mode == ordinary.stat().st_mode
    assert os.listdir(path.parent) == ["file"]  # noqa: PTH208


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no more"), replacing(path) as stream:
        stream.write(b"new")
        raise ValueError("no more")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"old")]


def test_a_symbolic_link_stays_one(tmp_path):
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    real.parent.mkdir()
    link.symlink_to(real)
    for text in (b"first", b"second"):
        put(link, text)
        assert link.is_symlink() and real.read_bytes() == text
    assert why_unwritable(str(link), replaced=True) is None


def test_names_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("n" * 255)
    assert why_unwritable(str(path), replaced=True) is None
    put(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert why_unwritable(str(tmp_path / ("n" * 256))) == "which cannot be written: File name too long"
    assert why_unwritable("d/" * 5000 + "n") == "which cannot be written: File name too long"


@pytest.fixture(params=["pipe", "socket", "device", "directory"])
def odd(request, tmp_path):
    """Something with a name that is no file, and what it is called."""
    path = tmp_path / "odd"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif request.param == "device":
        path.symlink_to("/dev/null")
    else:
        path.mkdir()
    return path, request.param


@pytest.mark.parametrize("replaced", [False, True])
def test_what_is_no_file_is_named_and_left_alone(odd, replaced):
    path, kind = odd
    before = stat.S_IFMT(path.stat().st_mode)
    assert why_unwritable(str(path), replaced=replaced) == f"a {kind}; it must be a file"
    with pytest.raises(OSError, match=f"is a {kind}; it must be a file"), replacing(path):
        pass
    assert stat.S_IFMT(path.stat().st_mode) == before


def test_looking_leaves_nothing(tmp_path):
    assert why_unwritable(str(tmp_path / "new"), replaced=True) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").write_text("kept")
    assert why_unwritable(str(tmp_path / "old"), replaced=True) is None
    assert (tmp_path / "old").read_text() == "kept"
