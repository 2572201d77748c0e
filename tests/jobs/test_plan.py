"""Plans: what is accepted, what is refused and in which words, and what counts as a change."""

import os
from pathlib import Path

import pytest

from jobs.plan import PARITY, PlanError, difference, load, parse

BASE = """
study = "s"
blocks = 2
primary = [["one", "two"]]
aa = [["one", "again"]]
[common]
samples = 1000
epochs = 1
batch_size = 100
[[variant]]
name = "one"
ranks = 4
backend = "mpi"
allreduce = "flat"
simulate_nodes = [2, 2]
[[variant]]
name = "two"
ranks = 4
backend = "mpi"
allreduce = "hierarchical"
simulate_nodes = [2, 2]
[[variant]]
name = "again"
ranks = 4
backend = "mpi"
allreduce = "flat"
simulate_nodes = [2, 2]
[[variant]]
name = "alone"
ranks = 1
backend = "single"
"""


def changed(*pairs):
    text = BASE
    for old, new in pairs:
        assert text.count(old), old
        text = text.replace(old, new, 1)
    return text


def test_a_plan_is_read():
    plan = parse(BASE)
    assert (plan.study, plan.blocks, plan.timeout_s, plan.order_seed) == ("s", 2, 300.0, 0)
    assert plan.primary == (("one", "two"),) and plan.aa == (("one", "again"),)
    assert [variant.name for variant in plan.variants] == ["one", "two", "again", "alone"]
    one = plan.variants[0]
    assert one.settings["samples"] == 1000 and one.settings["simulate_nodes"] == [2, 2]
    assert one.config.epochs == 1 and one.config.allreduce == "flat"
    assert [variant.placement for variant in plan.variants] == ["4G2N", "4G2N", "4G2N", "1G1N"]
    assert {variant.config.threads for variant in plan.variants} == {1}


def test_a_variant_beats_common():
    plan = parse(changed(('backend = "single"', 'backend = "single"\nepochs = 3\nthreads = 2')))
    assert [variant.config.epochs for variant in plan.variants] == [1, 1, 1, 3]
    assert plan.variants[3].config.threads == 2


REFUSED = [
    ((("blocks = 2", "block = 2"),), "unknown key 'block'; the valid ones are study, blocks, "),
    ((("[common]", "[common]\nepoch = 1"),), "[common]: unknown key 'epoch'; the valid ones are backend, operator, "),
    ((("[common]", "[common]\nranks = 1"),), "[common]: unknown key 'ranks'"),
    ((("[common]", '[common]\nrecord = "x"'),), "[common]: unknown key 'record'"),
    ((("ranks = 1", "ranks = 1\nwidth = 3"),), "variant alone: unknown key 'width'; the valid ones are name, ranks, "),
    ((("ranks = 1", "ranks = 1\ndry_run = true"),), "variant alone: unknown key 'dry_run'"),
    ((("epochs = 1", "epochs = 0"),), "variant one: --epochs is 0; it must be a whole number of at least 1"),
    ((("epochs = 1", "epochs = 1.5"),), "--epochs is 1.5"),
    ((('backend = "single"', 'backend = "nccl"'),), "variant alone: --backend is 'nccl'; it must be one of single, "),
    ((('study = "s"', ""),), "no study is given"),
    ((("blocks = 2", ""),), "no blocks is given"),
    ((('study = "s"', 'study = "a b"'),), "study is 'a b'; it must be made of letters, digits"),
    ((('study = "s"', 'study = ".."'),), "study is '..'"),
    ((('study = "s"', 'study = "a/b"'),), "study is 'a/b'"),
    ((('study = "s"', 'study = "-x"'),), "study is '-x'"),
    ((('study = "s"', 'study = "é"'),), "study is 'é'"),
    ((('study = "s"', "study = 3"),), "study is 3"),
    ((('study = "s"', 'study = "a\\n"'),), "study is 'a\\n'"),
    ((('"alone"', '"$(reboot)"'),), "variant 4: name is '$(reboot)'"),
    ((('"alone"', f'"{"x" * 65}"'),), "variant 4: name is"),
    ((('name = "alone"', ""),), "variant 4: no name is given"),
    ((('name = "alone"', 'name = "two"'),), "variant two is given twice"),
    ((("ranks = 1", ""),), "variant alone: no ranks are given"),
    ((("ranks = 1", "ranks = 0"),), "variant alone: ranks is 0; it must be a whole number of at least 1"),
    ((("blocks = 2", "blocks = 1000000000"),), "blocks is 1000000000; it must be a whole number of at least 1 and at"),
    ((("ranks = 1", "ranks = true"),), "variant alone: ranks is True"),
    ((("ranks = 1", "ranks = 2"),), "variant alone: ranks is 2; with backend single it must be 1"),
    ((("blocks = 2", "blocks = 0"),), "blocks is 0"),
    ((("blocks = 2", "blocks = 2.0"),), "blocks is 2.0"),
    ((("blocks = 2", "blocks = 2\ntimeout_s = 0"),), "timeout_s is 0; it must be a number of seconds above 0"),
    ((("blocks = 2", "blocks = 2\ntimeout_s = inf"),), "timeout_s is inf"),
    ((("blocks = 2", "blocks = 2\ntimeout_s = nan"),), "timeout_s is nan"),
    ((("blocks = 2", "blocks = 2\ntimeout_s = 1e300"),), "timeout_s is 1e+300; it must be a number of seconds above 0"),
    ((("blocks = 2", "blocks = 2\norder_seed = -1"),), "order_seed is -1"),
    ((("blocks = 2", f"blocks = 2\norder_seed = {10**30}"),), "order_seed is 1000"),
    ((("epochs = 1", f"epochs = {10**30}"),), "variant one: --epochs is 1000"),
    ((('["one", "two"]', '["one", "three"]'),), "primary names the variant 'three'; the variants are one, two, again"),
    ((('["one", "again"]', '["nobody", "again"]'),), "aa names the variant 'nobody'; the variants are"),
    ((('["one", "two"]', '["one", "one"]'),), "primary holds ['one', 'one']; it must hold pairs of two variants"),
    ((('["one", "two"]', '["one"]'),), "primary holds ['one']"),
    ((('["one", "two"]', '["one", "two"], ["two", "one"]'),), "primary holds ['two', 'one'] twice"),
    ((('[["one", "two"]]', '"one"'),), "primary is 'one'; it must be a list of pairs"),
    ((('["one", "again"]', '["one", "two"]'),), "aa: one and two must be the same, but allreduce is 'flat' and 'hier"),
    (
        (('"hierarchical"', '"hierarchical"\nsamples = 4000'),),
        "primary: one and two do unequal work: samples is 1000 and",
    ),
    ((('"hierarchical"', '"hierarchical"\nbatch_size = 50'),), "unequal work: samples of a step is 400 and 200"),
    ((("simulate_nodes = [2, 2]", "simulate_nodes = [2, 1]"),), "variant one: simulate_nodes [2, 1] holds 3 workers"),
    ((("batch_size = 100", "batch_size = 500"),), "variant one: --batch-size 500 on 4 ranks is 2000 a step"),
    ((("[common]", "[[common]]"),), "common must be a table"),
    ((("blocks = 2", "blocks = "),), "Invalid value"),
]


@pytest.mark.parametrize("changes, words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused_and_how(tmp_path, changes, words):
    file = tmp_path / "plan.toml"
    file.write_text(changed(*changes), encoding="utf-8")
    with pytest.raises(PlanError) as refused:
        load(file)
    message = str(refused.value)
    assert message.startswith(f"{file}: ")
    assert words in message
    assert "\n" not in message


def test_variants_must_be_a_list_of_tables():
    for value in ('variant = "x"', "variant = []", "[variant]\nname = 'x'"):
        with pytest.raises(PlanError, match="variant must be one table or more"):
            parse(f'study = "s"\nblocks = 1\n{value}')


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(PlanError, match="Is a directory"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'study = "\xe9"')
    with pytest.raises(PlanError, match=r"not UTF-8 \(byte 9\)"):
        load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("epochs = 1", "epochs = 2", "variant one: epochs was 1 and is 2"),
        ("ranks = 1", "ranks = 1\nseed = 5", "variant alone: seed was 0 and is 5"),
        ('name = "alone"', 'name = "lonely"', "variant alone is gone"),
        ("[common]", '[[variant]]\nname = "more"\nranks = 1\n[common]', "variant more is new"),
        ('primary = [["one", "two"]]', "", "primary was [['one', 'two']] and is []"),
        ('["one", "again"]', '["again", "one"]', "aa was [['one', 'again']] and is [['again', 'one']]"),
        ("blocks = 2", "blocks = 2\norder_seed = 1", "order_seed was 0 and is 1"),
        ('ranks = 1\nbackend = "single"', 'ranks = 2\nbackend = "mpi"', "variant alone: ranks was 1 and is 2"),
    ],
)
def test_a_difference_is_named(old, new, said):
    assert difference(parse(BASE), parse(changed((old, new)))) == said


@pytest.mark.parametrize(
    "old, new",
    [
        ("blocks = 2", "blocks = 9\ntimeout_s = 7"),
        ("blocks = 2", "# said in other words\nblocks = 2"),
        ("ranks = 1", "ranks = 1\nepochs = 1"),
        ("ranks = 1", "ranks = 1\nthreads = 1"),
    ],
)
def test_what_changes_no_launch_is_no_difference(old, new):
    assert difference(parse(BASE), parse(changed((old, new)))) is None


# --- the plan that comes with the package ---


@pytest.fixture(scope="module")
def quick():
    return load(Path(__file__).parents[2] / "jobs/plans/quick.toml")


def test_quick_holds_what_it_should(quick):
    variants = {variant.name: variant for variant in quick.variants}
    for backend in ("horovod", "ddp", "mpi"):
        for kind in ("flat", "hierarchical"):
            one = variants[f"{backend}-{kind}"]
            assert (one.config.backend, one.config.allreduce) == (backend, kind)
            assert (one.ranks, one.config.simulate_nodes, one.placement) == (4, (2, 2), "4G2N")
        for ranks in (1, 2):
            one = variants[f"{backend}-{ranks}"]
            assert (one.config.backend, one.config.allreduce) == (backend, "stock")
            assert (one.ranks, one.placement) == (ranks, f"{ranks}G1N")
        assert (f"{backend}-flat", f"{backend}-hierarchical") in quick.primary
    assert quick.aa == (("mpi-flat", "mpi-flat-again"),)
    assert {variants[f"operator-{name}"].config.operator for name in ("pykan", "spline")} == {"pykan", "spline"}
    assert quick.study == "quick" and quick.blocks == 3


def test_quick_compares_equal_work(quick):
    def work(name):
        one = next(variant for variant in quick.variants if variant.name == name)
        settings = [getattr(one.config, key) for key in (*PARITY, "hidden", "grid", "order")]
        return [*settings, one.config.global_batch(one.ranks)]

    operators = {"operator-pykan", "operator-spline"}
    assert work("operator-pykan") == work("operator-spline")
    others = [work(variant.name) for variant in quick.variants if variant.name not in operators]
    assert all(one == others[0] for one in others)


# --- placements ---


def placed(value):
    """BASE with the variant `one` and its twins on a placement, given as TOML."""
    text = BASE.replace("simulate_nodes = [2, 2]\n", "").replace("ranks = 4\n", f"placement = {value}\n")
    return text.replace("batch_size = 100", "batch_size = 10")


def test_a_placement_gives_ranks_and_nodes():
    plan = parse(placed('"8G4N"'))
    assert [(one.ranks, one.nodes, one.hosts, one.placement) for one in plan.variants] == [
        *[(8, 4, 4, "8G4N")] * 3,
        (1, None, None, "1G1N"),
    ]
    assert [one.hosts for one in parse(BASE).variants] == [1, 1, 1, None]
    assert parse(placed('"8G4N"\nranks = 8')) != plan and parse(placed('"8G4N"\nranks = 8')).variants == plan.variants


@pytest.mark.parametrize(
    "value, said",
    [
        ('"2G4N"', "variant one: placement is 2G4N; 2 workers do not share out evenly over 4 nodes"),
        ('"5G2N"', "variant one: placement is 5G2N; 5 workers do not share out"),
        ('"4G"', "variant one: placement is '4G'; it must be workers and nodes, as 4G2N"),
        ('"4g2n"', "placement is '4g2n'"),
        ('"0G1N"', "placement is '0G1N'"),
        ("4", "placement is 4"),
        ('"4G2N"\nranks = 8', "variant one: placement is 4G2N and ranks is 8; leave ranks out"),
        ('"4G2N"\nsimulate_nodes = [2, 2]', "placement names real nodes and simulate_nodes simulated ones"),
    ],
)
def test_placements_that_are_refused(value, said):
    with pytest.raises(PlanError) as error:
        parse(placed(value))
    assert said in str(error.value)


def test_another_placement_is_another_variant():
    said = difference(parse(placed('"4G2N"')), parse(placed('"4G4N"')))
    assert said == "variant one: nodes of the placement was 2 and is 4"
    with pytest.raises(PlanError, match="aa: one and again must be the same, but nodes of the placement is 2 and 4"):
        parse("4G4N".join(placed('"4G2N"').rsplit("4G2N", 1)))


def test_the_plans_of_the_paper_and_of_the_rehearsal_cluster():
    plans = Path(__file__).parents[2] / "jobs/plans"
    paper, rehearsal = load(plans / "paper.toml"), load(plans / "rehearsal.toml")
    assert paper.blocks == 8 and rehearsal.blocks == 2
    placements = {variant.placement for variant in paper.variants if variant.name.startswith(("strong", "weak"))}
    assert placements == {"1G1N", "2G1N", "2G2N", "4G2N", "4G4N", "8G4N"}
    widths = {v.config.hidden for v in paper.variants if v.name.startswith("model") and v.placement == "8G4N"}
    assert widths == {(32,), (64,), (128,), (256,)}
    for variant in paper.variants:
        if variant.name.startswith("weak"):
            assert variant.config.samples == 25_000 * variant.ranks
        if variant.name.startswith("strong"):
            assert (variant.config.samples, variant.config.global_batch_size) == (100_000, 8000)
    for plan in (paper, rehearsal):
        assert len(plan.primary) == 6 and len(plan.aa) == 1
        for flat, hierarchical in plan.primary:
            assert hierarchical == flat.replace("flat", "hierarchical")


@pytest.mark.parametrize(
    "content, words",
    [
        ("x = " + "[" * 5000, "nested too deeply"),
        ("# " + "x" * 2**23, "larger than 4,096 KiB"),
        ("pipe", "not a regular file"),
        ("/dev/zero", "not a regular file"),
    ],
    ids=["nested", "large", "pipe", "device"],
)
def test_a_hostile_file_is_refused_and_not_read_for_ever(tmp_path, content, words):
    file = tmp_path / "plan.toml"
    if content == "pipe":
        os.mkfifo(file)
    elif content.startswith("/"):
        file.symlink_to(content)
    else:
        file.write_text(content)
    with pytest.raises(PlanError, match=words) as refused:
        load(file)
    assert str(refused.value).startswith(f"{file}: ") and "\n" not in str(refused.value)
