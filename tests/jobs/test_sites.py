"""Sites: what is accepted and refused, and how placements become nodes."""

import dataclasses
import os
import re
import tomllib
from pathlib import Path

import pytest

from jobs.sites import SITES, Site, SiteError, find, load, names, parse

NEEDED = 'workers_per_node = 2\ncpus_per_worker = 4\ntime_limit = "01:30:00"\n'


def site(**more):
    return parse(tomllib.loads(NEEDED) | more)


def test_the_sites_of_the_project_are_read():
    assert names() == ["finisterrae3", "rehearsal"]
    for name in (*names(), "template"):
        assert load(find(name)).workers_per_node == 2
    ft3 = load(find("finisterrae3"))
    assert (ft3.gpus(2), ft3.cpus_per_worker, ft3.mpi, ft3.launcher) == ("gpu:a100:2", 32, "pmix", "srun")
    assert ft3.environment["NCCL_IB_HCA"] == "=mlx5_0:1"


def test_the_template_shows_every_key_with_a_value_that_is_accepted():
    lines = (SITES / "template.toml").read_text().splitlines()
    text = "\n".join(re.sub(r"^# (\[?\w+\]?( =|$))", r"\1", line) for line in lines)
    table = tomllib.loads(text)
    assert set(table) == {field.name for field in dataclasses.fields(Site)}
    parse(table)


def test_a_template_as_it_stands_holds_the_defaults():
    assert load(SITES / "template.toml") == Site(2, 8, "02:00:00")


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("partitions", "x", "unknown key 'partitions'; the valid ones are workers_per_node, cpus_per_worker, "),
        ("workers_per_node", 0, "workers_per_node is 0; it must be a whole number of at least 1"),
        ("cpus_per_worker", True, "cpus_per_worker is True"),
        ("time_limit", "UNLIMITED", "time_limit: it is 'UNLIMITED'; a limit is needed"),
        ("time_limit", "2h", "time_limit: it is '2h'; it must be one of minutes, MM:SS"),
        ("time_limit", 90, "time_limit is 90; it must be a time"),
        ("launcher", "ssh", "launcher is 'ssh'; it must be one of srun, mpirun"),
        ("bind", "socket", "bind is 'socket'; it must be one of cores, none"),
        ("exclusive", 1, "exclusive is 1; it must be true or false"),
        ("partition", "a\nb", "partition: it is 'a\\nb'; it must be one line"),
        ("account", "", "account is ''; it must be a text"),
        ("prolog", "set -e", "prolog is 'set -e'; it must be a list of lines of shell"),
        ("prolog", ["set -e\nrm"], "prolog: it is 'set -e\\nrm'; it must be one line"),
        ("sbatch_options", ["--nodes=3"], "sbatch_options is ['--nodes=3']; it must be a list of options --NAME"),
        ("sbatch_options", ["-N3"], "sbatch_options is ['-N3']"),
        ("environment", {"A-B": "x"}, "environment is {'A-B': 'x'}; it must be a table of names of variables"),
        ("environment", {"A": 1}, "environment is {'A': 1}"),
        ("environment", {"A": "x\ny"}, "environment: A is 'x\\ny'; it must be one line"),
    ],
)
def test_what_is_refused_and_in_which_words(key, value, said):
    with pytest.raises(SiteError) as error:
        site(**{key: value})
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["workers_per_node", "cpus_per_worker", "time_limit"])
def test_what_is_needed_is_named(key):
    table = tomllib.loads(NEEDED)
    del table[key]
    with pytest.raises(SiteError, match=f"no {key} is given"):
        parse(table)


# --- files that others can write ---


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path, mode):
    tmp_path.chmod(0o755)
    file = tmp_path / "mine.toml"
    file.write_text(NEEDED)
    file.chmod(mode)
    with pytest.raises(SiteError, match=r"mine\.toml: it can be written by others .*chmod go-w"):
        load(file)
    file.chmod(0o644)
    assert load(file).cpus_per_worker == 4


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_file_in_a_directory_that_others_can_write_is_refused(tmp_path, mode):
    file = tmp_path / "mine.toml"
    file.write_text(NEEDED)
    file.chmod(0o600)
    tmp_path.chmod(mode)
    with pytest.raises(SiteError, match="its directory can be written by others"):
        load(file)
    # Also through a link in a safe place.
    safe = tmp_path / "safe"
    safe.mkdir(mode=0o700)
    (safe / "link.toml").symlink_to(file)
    with pytest.raises(SiteError, match="its directory can be written by others"):
        load(safe / "link.toml")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_a_file_of_another_user_is_refused(tmp_path):
    file = tmp_path / "theirs.toml"
    file.write_text(NEEDED)
    tmp_path.chmod(0o700)
    os.chown(file, 12345, 12345)
    with pytest.raises(SiteError, match="it belongs to another user"):
        load(file)


def test_a_site_that_is_not_there_is_refused_with_the_ones_that_are(tmp_path):
    for name in ("nowhere", str(tmp_path / "x.toml"), "x/y"):
        with pytest.raises(SiteError, match=r"--site is '.*'; it must be one of finisterrae3, rehearsal, or the path"):
            find(name)


def test_a_file_that_is_no_toml_is_named(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "x.toml").write_text("a = ")
    with pytest.raises(SiteError, match=r"x\.toml: "):
        load(Path(tmp_path / "x.toml"))
    for text, said in (("a = " + "[" * 5000, "nested too deeply"), (" " * (2**20 + 1), "larger than 1,024 KiB")):
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(SiteError, match=said):
            load(Path(tmp_path / "x.toml"))


# --- placements ---


def test_placements_become_nodes():
    four = site(workers_per_node=4, nodes=4)
    assert [four.layout(ranks, nodes) for ranks, nodes in [(1, 1), (4, 2), (4, 4), (8, 4), (8, 2)]] == [
        (1, 1), (2, 2), (4, 1), (4, 2), (2, 4),
    ]  # fmt: skip
    # Without a placement: as few nodes as hold them.
    assert [four.layout(ranks, None) for ranks in (1, 3, 4, 8, 6)] == [(1, 1), (1, 3), (1, 4), (2, 4), (2, 3)]


@pytest.mark.parametrize(
    "ranks, nodes, said",
    [
        (
            8,
            2,
            "8G2N: 4 workers a node exceed the site's workers_per_node 2; spread them over more nodes, as the "
            "variants of jobs/plans/paper.toml",
        ),
        (8, 8, "8G8N: 8 nodes exceed the site's 4"),
        (3, None, "3 ranks do not share out evenly over 2 nodes; give the variant a placement"),
        (10, None, "10G5N: 5 nodes exceed the site's 4"),
    ],
)
def test_placements_that_a_site_cannot_hold(ranks, nodes, said):
    with pytest.raises(SiteError) as error:
        site(nodes=4).layout(ranks, nodes)
    assert str(error.value) == said
