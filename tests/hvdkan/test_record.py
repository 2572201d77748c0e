import gzip
import json
import lzma
import math
import os

import pytest

from hvdkan import record as records


def made(**changes):
    plain = dict.fromkeys(records.KEYS) | {"schema": records.SCHEMA, "config": {}, "requested": {}, "effective": {}}
    return plain | {"variant": "mpi-flat", "block": 1, "status": "ok"} | changes


def torn_variants():
    """The second of two lines as a crash may leave it: in the middle, inside a character, and complete."""
    line = records.encode(made(block=2, host="knöten"))
    inside = line.index("ö".encode()) + 1
    return {"middle": line[: len(line) // 2], "inside a character": line[:inside], "no newline": line[:-1]}


@pytest.mark.parametrize("cut", ["middle", "inside a character", "no newline"])
def test_a_torn_line_is_ended_and_its_bytes_are_kept(tmp_path, cut):
    path, torn = tmp_path / "r.jsonl", torn_variants()[cut]
    path.write_bytes(records.encode(made(block=1)) + torn)
    records.append(path, made(block=3))
    reading = records.read(path)
    complete = cut == "no newline"
    assert [record["block"] for record in reading.records] == ([1, 2, 3] if complete else [1, 3])
    assert [(file, line) for file, line, _ in reading.damaged] == ([] if complete else [(str(path), 2)])
    assert torn in path.read_bytes().split(b"\n")


def test_a_line_cut_inside_a_character_says_so(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(torn_variants()["inside a character"])
    assert "inside a character" in records.read(path).damaged[0][2]


def test_append_does_not_touch_a_whole_file(tmp_path):
    path = tmp_path / "new" / "r.jsonl"
    records.append(path, made(block=1))
    records.append(path, made(block=2))
    assert path.read_bytes() == records.encode(made(block=1)) + records.encode(made(block=2))


@pytest.mark.parametrize("text", ["[1]", "3", '"x"', "{", '{"step_s": NaN}', '{"step_s": [Infinity]}', "[" * 100_000])
def test_anything_but_one_object_of_finite_numbers_is_damage(tmp_path, text):
    path = tmp_path / "r.jsonl"
    path.write_text(text + "\n" + records.encode(made()).decode())
    reading = records.read(path)
    assert len(reading.records) == 1
    assert reading.damaged[0][:2] == (str(path), 1)


def test_missing_keys_and_wrong_kinds_are_damage(tmp_path):
    path = tmp_path / "r.jsonl"
    lacking = made()
    del lacking["attempt"]
    path.write_bytes(records.encode(lacking) + records.encode(made(config="x")) + records.encode(made(effective=None)))
    reading = records.read(path)
    assert [reason for _, _, reason in reading.damaged] == ["no key attempt", "config is not an object"]
    assert len(reading.records) == 1


def test_non_finite_numbers_come_back_and_names_stay_names(tmp_path):
    written = made(
        variant="NaN",
        step_s=[0.1, math.inf],
        epoch_loss=[1, math.nan],
        exposed={"fraction": -math.inf},
        rank_summary=[{"rank": 0, "step_s_median": math.nan}],
        ranks=[{"host": "Infinity"}],
    )
    line = records.encode(written)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    read = records.decode(line)
    assert read["variant"] == "NaN" and read["ranks"] == [{"host": "Infinity"}]
    assert read["step_s"] == [0.1, math.inf] and math.isnan(read["epoch_loss"][1])
    assert read["exposed"]["fraction"] == -math.inf and math.isnan(read["rank_summary"][0]["step_s_median"])


def test_an_undecodable_file_name_in_a_message_survives():
    message = os.fsdecode(b"no file caf\xe9")
    assert records.decode(records.encode(made(error={"message": message})))["error"]["message"] == message


@pytest.mark.parametrize("schema", ["2.0", "10.1", 2, None])
def test_another_major_schema_names_both(tmp_path, schema):
    path = tmp_path / "r.jsonl"
    path.write_bytes(records.encode({"schema": schema}))
    with pytest.raises(records.SchemaError) as error:
        records.read(tmp_path)
    assert repr(schema) in str(error.value) and records.SCHEMA in str(error.value) and str(path) in str(error.value)


def test_a_newer_minor_schema_is_read(tmp_path):
    (tmp_path / "r.jsonl").write_bytes(records.encode(made(schema="1.7", unknown=1)))
    assert records.read(tmp_path).records[0]["unknown"] == 1


def test_every_file_below_a_directory_in_name_order(tmp_path):
    records.write(tmp_path / "b" / "1.jsonl", [made(block=2), made(block=3)])
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(records.encode(made(block=1))))
    (tmp_path / "c.jsonl.xz").write_bytes(lzma.compress(records.encode(made(block=4)) + b"\n"))
    (tmp_path / "d.jsonl").mkdir()
    (tmp_path / "log.txt").write_text("nothing")
    reading = records.read(tmp_path)
    assert [record["block"] for record in reading.records] == [1, 2, 3, 4]
    assert reading.damaged == []


@pytest.mark.parametrize("fault", ["cut", "flipped", "no archive"])
def test_a_damaged_archive_is_reported_as_a_whole(tmp_path, fault):
    packed = gzip.compress(b"".join(records.encode(made(block=block)) for block in range(50)))
    middle = len(packed) // 2
    data = {
        "cut": packed[:middle],
        "flipped": packed[:middle] + bytes(byte ^ 255 for byte in packed[middle : middle + 8]) + packed[middle + 8 :],
        "no archive": b"text",
    }[fault]
    (tmp_path / "r.jsonl.gz").write_bytes(data)
    records.write(tmp_path / "s.jsonl", [made()])
    reading = records.read(tmp_path)
    assert any(line == 0 and "damaged archive" in reason for _, line, reason in reading.damaged)
    assert reading.records[-1] == made()


def test_a_write_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "r.jsonl"
    records.write(path, [made(block=1)])
    with pytest.raises(TypeError):
        records.write(path, [made(block=2), made(thing=object())])
    assert [record["block"] for record in records.read(path).records] == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_is_readable_by_others(tmp_path):
    records.write(tmp_path / "r.jsonl", [made()])
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("kind", ["pipe", "device", "dangling link", "unreadable"])
def test_what_is_no_readable_file_is_damage_and_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "r.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        # A regular file that opens and cannot be read is also what a permission or a broken disk gives.
        path.symlink_to({"device": "/dev/zero", "dangling link": "none", "unreadable": "/proc/self/mem"}[kind])
    records.write(tmp_path / "s.jsonl", [made()])
    reading = records.read(tmp_path)
    said = {"dangling link": "No such file", "unreadable": "Input/output error"}.get(kind, "not a regular file")
    assert [(file, line) for file, line, _ in reading.damaged] == [(str(path), 0)] and said in reading.damaged[0][2]
    assert reading.records == [made()]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_an_endless_line_is_damage_and_is_not_read_to_its_end(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(records, "MOST_BYTES", 2**20)
    suffix = {gzip.compress: ".gz", lzma.compress: ".xz"}.get(pack, "")
    whole = records.encode(made())
    (tmp_path / f"r.jsonl{suffix}").write_bytes(pack(whole + b"[" * 2**22 + b"\n" + whole))
    reading = records.read(tmp_path)
    assert reading.records == [made()]
    assert [(line, reason) for _, line, reason in reading.damaged] == [
        (2, "a line of more than 1 MiB: from here on it was not read")
    ]


@pytest.mark.parametrize("line", [b"\n", b"{}\n"])
def test_a_file_of_lines_without_records_is_given_up(tmp_path, line):
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(records.encode(made()) + line * 100_000))
    reading = records.read(tmp_path)
    assert reading.records == [made()]
    assert len(reading.damaged) <= 1001 and reading.damaged[-1][1] == 1002
    assert reading.damaged[-1][2] == "more than 1,000 lines without a record: from here on it was not read"
