"""From records on disk to the page, its tables and its exit status."""

import csv
import html.parser
import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from analysis import report
from hvdkan import record as records

HOSTILE = [
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    '"><img src=x onerror=alert(1)>',
    "$\\frac{$ & $x_",
    "a\x00b\x1b[31m\ud800",
    "]]> --> é 字 " + "x" * 200,
]

RATIO = ("step time ratio (geometric mean)", "ratio, 95% low", "ratio, 95% high")
STEP, SPEEDUP, EFFICIENCY = (
    "candidate step (ms, geometric mean)",
    "speedup (geometric mean)",
    "efficiency (%, speedup / workers)",
)


class Page(html.parser.HTMLParser):
    """What a browser would see: tags with attributes, and the text outside of styles."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.source = [], "", path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    @property
    def svgs(self):
        return re.findall(r"<svg.*?</svg>", self.source, flags=re.DOTALL)


def made(directory, expected=0):
    assert report.main([str(directory)]) == expected
    return Page(directory / "report.html")


def table(directory, name):
    with (directory / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_whole_report(quick, plan, save, capsys):
    directory = save(quick(), plan)
    page = made(directory)
    titles = re.findall(r"<h2>(.*?)</h2>", page.source)
    assert titles == [
        "Findings", "Strong scaling", "Flat against hierarchical", "Noise floor (A/A)", "Horovod against DDP",
        "Operator speed", "Exposed communication", "What was requested and what ran",
        "The paper&#x27;s numbers beside ours", "How it was measured, and what was not tested", "Failed and damaged",
    ]  # fmt: skip
    assert page.text.count("no verdict possible from 3 blocks (8 are needed)") == 1
    assert page.text.count("no verdict possible from 3 blocks: ") == 6
    assert "Launches on 4G2N ran on 2 simulated nodes of one host, with more threads than cores." in page.text
    assert "says nothing about a network" in page.text
    assert "42 launches of 14 variants" in page.text
    printed = capsys.readouterr().out
    out = printed.splitlines()
    assert out[-1] == str(directory / "report.html")
    assert all(len(line) <= 80 for line in out[:-1])
    assert out[0].startswith("In short: no verdict possible from 3 blocks (8 are")
    assert "- no verdict possible from 3 blocks: horovod hierarchical on 4G2N took 1.1" in printed.replace("\n  ", " ")


def test_the_page_stands_alone_and_can_be_read_aloud(quick, plan, save):
    page = made(save(quick(), plan))
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert "@import" not in page.source and not re.search(r'(src|href)="(https?:)?//', page.source.replace("xlink", ""))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]*)"', page.source) + re.findall(r"url\(#([^)]*)\)", page.source)
    assert targets and set(targets) <= set(ids)
    assert len(page.svgs) == 7
    for svg in page.svgs:
        root = ElementTree.fromstring(svg.replace('xlink:href="', 'href="'))
        assert root.attrib["role"] == "img" and root[0].attrib["id"] == root.attrib["aria-labelledby"]
        assert len(root[0].text) > 20
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page.source)
    assert all(re.search(r"Rests on \d+ launches", caption) for caption in captions) and len(captions) == 7
    assert captions[1].endswith("Rests on 18 launches. With more threads than cores and simulated nodes.")


def test_the_numbers_are_those_of_a_short_script(quick, plan, save):
    directory = save(quick(blocks=9, noise=0.05), plan)
    made(directory)
    step = {(r["variant"], r["block"]): statistics.median(r["step_s"]) for r in records.read(directory).records}
    for row in table(directory, "hierarchy"):
        logs = [math.log(step[row["candidate"], b] / step[row["baseline"], b]) for b in range(1, 10)]
        mean, sd = statistics.mean(logs), statistics.stdev(logs)
        half = 2.306004135 * sd / 3  # Student's t with 8 degrees of freedom
        wanted = [math.exp(mean), math.exp(mean - half), math.exp(mean + half)]
        assert [float(row[key]) for key in RATIO] == pytest.approx(wanted, rel=1e-5)
        assert row["faster in"] == f"{sum(log < 0 for log in logs)} of 9" and row["family"] == "primary"
        mean = statistics.geometric_mean(step[row["candidate"], b] for b in range(1, 10))
        assert float(row[STEP]) == pytest.approx(1e3 * mean, rel=1e-5)
    rate = {(r["variant"], r["block"]): r["samples_per_s"] for r in records.read(directory).records}
    scaling = {row["variant"]: row for row in table(directory, "scaling")}
    for backend in ("horovod", "ddp", "mpi"):
        gains = [rate[f"{backend}-2g", b] / rate[f"{backend}-1g", b] for b in range(1, 10)]
        row = scaling[f"{backend}-2g"]
        assert float(row[SPEEDUP]) == pytest.approx(statistics.geometric_mean(gains), rel=1e-5)
        assert float(row[EFFICIENCY]) == pytest.approx(50 * statistics.geometric_mean(gains), rel=1e-5)
        rates = [rate[f"{backend}-2g", b] for b in range(1, 10)]
        assert float(row["samples/s (harmonic mean)"]) == pytest.approx(statistics.harmonic_mean(rates), rel=1e-5)


def test_verdicts_appear_from_eight_blocks_on(quick, plan, save):
    page = made(save(quick(blocks=8, noise=0.01), plan))
    assert "slower (8 blocks)" in page.text and "faster (8 blocks)" in page.text
    assert "Holm-adjusted p 0.023" in page.text  # 3 x 2 / 2 ** 8
    assert (
        "In short, of 3 primary comparisons: 3 slower (horovod hierarchical / flat on 4G2N, ddp hierarchical / flat on "
        "4G2N and mpi hierarchical / flat on 4G2N). Nodes were simulated: nothing here is about a network."
    ) in page.text


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_records_is_only_text(make, fail, save, text):
    changes = {"study": text, "placement": "4G2N", "config_backend": text, "exclusive": text}
    twins = [make(f"{name} {text}", block, **changes) for name in ("mpi-flat", "mpi-hierarchical") for block in (1, 2)]
    odd = make(text, 1, cell=text, environment={"cpu": text, text: text}, asked="hierarchical", ran="flat")
    odd["effective"] |= {"reason": text, "transport": text, "evidence": {text: [text, {text: text}]}}
    error = {"kind": text, "message": text, "rank": text, "host": text}
    directory = save([*twins, odd, fail(text, 2) | {"error": error}])
    page = made(directory)
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.svgs
    for svg in page.svgs:
        ElementTree.fromstring(svg.replace('xlink:href="', 'href="'))
    assert all(character.isprintable() or character == "\n" for character in page.text)
    for path in (directory / "tables").iterdir():
        with path.open(encoding="utf-8", newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell.lstrip().startswith(("=", "+", "@", "|"))], path.name


def test_a_hostile_plan_is_only_text(make, save):
    directory = save([make(block=1)], "study = '<script>'\nprimary = [['<b>', '=x']]\n")
    assert not {tag for tag, _ in made(directory).tags} & {"script", "b"}


def test_a_study_whose_launches_all_failed_has_a_report(fail, save, plan):
    directory = save([fail("mpi-flat", block, message="disk <full>") for block in (1, 2, 3)], plan)
    page = made(directory)
    assert "All 3 launches failed" in page.text and "disk <full>" in page.text and "disk &lt;full&gt;" in page.source
    assert page.svgs == []
    assert len(table(directory, "failed")) == 3


def test_one_launch_has_no_comparison_and_no_interval(make, save):
    directory = save([make("mpi-flat", 1)])
    page = made(directory)
    assert "1 launch of 1 variant" in page.text and "Noise floor: n/a" in page.text
    (row,) = table(directory, "variants")
    assert (row["launches"], row["lowest step (ms)"], row["highest step (ms)"]) == ("1", "n/a", "n/a")
    assert float(row["step (ms, median)"]) == 4


@pytest.mark.parametrize("placement", [{"workers": 1, "nodes": None}, {"workers": 2, "nodes": None}])
def test_one_placement_only(make, save, placement):
    page = made(save([make("horovod-1", block, **placement) for block in (1, 2)]))
    assert "n/a: no variant was run with the same settings on two placements" in page.text


def test_diverged_failed_damaged_and_missing_are_counted(make, fail, save, capsys):
    plan = "blocks = 4\n[[variant]]\nname = 'mpi-flat'\n[[variant]]\nname = 'mpi-hierarchical'\n"
    directory = save([make("mpi-flat", 1), make("mpi-flat", 2, epoch_loss=[0.5, math.nan]), fail("mpi-flat", 3)], plan)
    (directory / "records" / "torn.jsonl").write_text("{")
    page = made(directory)
    assert "2 of 3 launches failed; they are counted, not averaged" in page.text
    assert "5 launches of the plan have no record yet" in page.text
    assert "1 line of the records could not be read" in page.text
    assert [row["why"] for row in table(directory, "failed")] == ["a loss is not finite", "failed: OSError"]
    assert table(directory, "damaged")[0]["file"] == "records/torn.jsonl"
    (row,) = table(directory, "variants")
    assert (row["launches"], row["failed"]) == ("1", "2")


def test_what_ran_otherwise_is_shown_and_not_compared(make, save):
    made_ = [make("mpi-flat", 1), make("mpi-hierarchical", 1, ran="flat")]
    made_[1]["effective"]["reason"] = "one node"
    directory = save(made_)
    page = made(directory)
    assert "not compared: mpi hierarchical / flat" in page.text
    rows = {row["variant"]: row for row in table(directory, "requested")}
    assert rows["mpi-hierarchical"]["all-reduce ran"] == "flat"
    assert rows["mpi-hierarchical"]["reason"] == "one node"
    assert rows["mpi-hierarchical"]["as asked (launches)"] == "0 of 1"
    assert rows["mpi-flat"]["evidence"] == "steps: reduce_scatter, allreduce, allgather"


def test_what_ran_otherwise_is_nowhere_shown_under_its_name(make, save):
    """One number that stands for nothing else would be seen wherever it came to be shown."""
    otherwise = {"ran": "flat", "config_operator": "pykan", "epoch_loss": [0.77777], "test_loss": 0.77777}
    otherwise |= {"peak_memory_bytes": 777770000, "nodes": None}
    shares = {"with_s": 0.004, "without_s": 0.001, "fraction": 0.77777, "steps": 20}
    made_ = [make("mpi-flat", block) for block in (1, 2)]
    for workers in (1, 2):
        name = f"mpi-hierarchical-{workers}"
        made_.append(make(name, 1, 0.0077777, workers=workers, exposed=shares, **otherwise))
    directory = save(made_)
    page = made(directory)
    for path in (directory / "tables").iterdir():
        assert path.name == "scaling.csv" or "7777" not in path.read_text(encoding="utf-8"), path.name
    # The reference of a series is one worker's, which exchanges nothing whatever was asked for, and says so.
    rows = {row["variant"]: row for row in table(directory, "scaling")}
    assert "one worker exchanges nothing (mpi-hierarchical-1: " in rows["mpi-hierarchical-1"]["remarks"]
    assert rows["mpi-hierarchical-2"]["step (ms, median)"] == rows["mpi-hierarchical-2"]["samples/s (harmonic mean)"]
    assert rows["mpi-hierarchical-2"]["step (ms, median)"] == "n/a"
    left = "mpi-hierarchical-2: allreduce hierarchical asked for, flat ran"
    assert page.text.count(f"Left out, since something else ran: {left}.") == 2  # finding and section
    assert "Exposed communication: 25% of a step (mpi-flat, range 25 to 25%, 2 launches); medians" in page.text
    assert "4 gave a measurement, 2 of them of something else than was asked for" in page.text
    rows = {row["variant"]: row for row in table(directory, "variants")}
    assert rows["mpi-hierarchical-2"]["remarks"] == f"left out, {left}"
    assert (rows["mpi-hierarchical-2"]["launches"], rows["mpi-hierarchical-2"]["failed"]) == ("0", "0")
    assert not [svg for svg in page.svgs if "hierarchical-2" in svg]


def test_nothing_but_launches_that_ran_otherwise_gives_no_share_of_a_step(make, save):
    page = made(save([make("mpi-hierarchical", 1, ran="flat")]))
    assert "Exposed communication: n/a. Left out, since something else ran: mpi-hierarchical" in page.text


def test_operators_that_ran_otherwise_are_not_in_the_figure(make, save):
    made_ = [make("mpi-a", 1, workers=1, nodes=None), make("mpi-b", 1, workers=1, nodes=None, config_operator="pykan")]
    made_.append(make("mpi-b", 2, workers=1, nodes=None, config_operator="pykan") | {"effective": {}})
    page = made(save(made_))
    assert "Left out, since something else ran: mpi-b: what ran is not recorded." in page.text
    (figure,) = [c for c in re.findall(r"<figcaption>(.*?)</figcaption>", page.source) if "training step" in c]
    assert "Rests on 2 launches." in figure


def test_a_measurement_that_does_not_say_what_ran_is_counted(make, save):
    directory = save([make("mpi-flat", 1), make("mpi-flat", 2, effective=None)])
    assert (
        "1 of 2 launches did not run as asked for and count as nothing else: mpi-flat: what ran is not"
        in made(directory).text
    )
    (row,) = table(directory, "requested")
    assert row["as asked (launches)"] == "1 of 2"


def test_the_transport_asked_for_is_shown(make, save):
    record = make("horovod-2", 1, workers=2, nodes=None, config_transport="gloo")
    record["requested"]["transport"] = "gloo"
    directory = save([record])
    made(directory)
    (row,) = table(directory, "requested")
    assert (row["transport asked"], row["transport ran"], row["as asked (launches)"]) == ("gloo", "mpi", "0 of 1")


def test_an_odd_record_costs_its_own_line_and_not_the_report(make, save):
    directory = save([make("mpi-flat", 1), make("mpi-flat", 2, exposed=[1])])
    assert "1 line of the records could not be read" in made(directory).text
    (row,) = table(directory, "damaged")
    assert (row["file"], row["line"]) == ("records/00001.jsonl", "1")
    assert row["reason"] == "exposed is [1]; it must be an object"


@pytest.mark.slow
def test_the_method_names_the_level_of_equivalence(quick, plan, save):
    assert (
        "For the 3 primary pairs it is one at level 98.33% (Bonferroni's adjustment)" in made(save(quick(), plan)).text
    )
    assert "difference. It is the 95% interval." in made(save(quick(), "study = 's'\n")).text


def test_a_weak_study_with_unequal_loads_loses_the_label(make, save):
    made_ = [make(f"mpi-{n}g", 1, workers=n, nodes=None, study="weak-scaling") for n in (1, 2)]
    page = made(save(made_))
    assert "not called weak scaling: samples per worker differ (20,000 at 1G1N and 10,000 at 2G1N)" in page.text
    assert "Growing work" in page.text


def test_mixed_studies_are_paired_within_a_study_only(make, save):
    made_ = [make("mpi-flat", 1, study="a"), make("mpi-hierarchical", 1, study="a"), make("mpi-flat", 2, study="a")]
    made_ += [make("mpi-flat", 1, 0.001, study="b"), make("mpi-hierarchical", 2, 0.001, study="b")]
    directory = save(made_)
    page = made(directory)
    assert "Records of 2 studies are mixed here" in page.text
    (row,) = table(directory, "hierarchy")
    assert (row["pairs"], row[RATIO[0]]) == ("1", "1")


@pytest.mark.slow
def test_tens_of_variants(make, save):
    made_ = [
        make(f"mpi-{name}-{width}", block, config_hidden=[width])
        for width in range(30)
        for name in ("flat", "hierarchical")
        for block in (1, 2)
    ]
    directory = save(made_)
    page = made(directory)
    assert len(table(directory, "hierarchy")) == 30
    assert "6 more pairs are in the table" in page.text and "14 further comparisons: see the tables below" in page.text


def test_the_paper_stands_beside_and_is_another_machines(quick, plan, save):
    directory = save(quick(), plan)
    page = made(directory)
    assert "another machine, other samples" in page.text
    rows = {row["quantity"]: row for row in table(directory, "paper")}
    efficiency = rows["efficiency at 2G1N (%)"]
    assert (
        efficiency["paper (DDP, pykan, A100)"] == "79.9"
        and rows["efficiency at 8G4N (%)"]["ours: ddp, spline"] == "n/a"
    )
    scaling = {row["variant"]: row for row in table(directory, "scaling")}
    assert efficiency["ours: ddp, spline"] == scaling["ddp-2g"][EFFICIENCY]
    assert rows["parameters at width 32, frozen ones included"]["ours: horovod, pykan"] == "2726"


def test_a_number_beside_the_papers_is_of_one_set_of_settings(make, save):
    def beside(*more):
        directory = save([make("ddp-1g", 1, workers=1, nodes=None), *more])
        made(directory)
        rows = {row["quantity"]: row["ours: ddp, spline"] for row in table(directory, "paper")}
        what = ("final training loss at width 32", "peak memory at width 32 (GB; the paper's of a GPU)",
                "parameters at width 32, frozen ones included", "communication at 2G1N (% of a step)")  # fmt: skip
        return [rows[name] for name in what]

    assert beside() == ["0.02", "0.4", "2726", "n/a"]
    two = {"workers": 2, "nodes": None}
    # Another placement: memory is of one, and with a batch per rank the loss too.
    assert beside(make("ddp-2g", 1, **two)) == ["n/a", "n/a", "2726", "25"]
    assert beside(make("ddp-2g", 1, **two) | {"global_batch": 1000}) == ["0.02", "n/a", "2726", "25"]
    # Other epochs are other settings.
    assert beside(make("ddp-long", 1, workers=1, nodes=None, config_epochs=9)) == ["n/a"] * 4
    assert beside(make("ddp-2g", 1, **two), make("ddp-2l", 1, config_epochs=9, **two))[3] == "n/a"
    # Launches of the same settings are pooled.
    assert beside(make("ddp-1g", 2, workers=1, nodes=None, epoch_loss=[0.04]))[0] == "0.03"
    # What ran otherwise is not ours either.
    other = make("ddp-1g", 2, workers=1, nodes=None, epoch_loss=[0.04], ran="flat")
    assert beside(other)[0] == "0.02"
    # Another transport is a column of its own.
    assert beside(make("ddp-gloo", 1, workers=1, nodes=None, config_transport="gloo")) == ["0.02", "0.4", "2726", "n/a"]


def test_the_papers_numbers_stand_on_their_own():
    text = (Path(report.__file__).parent / "paper.toml").read_text(encoding="utf-8")
    assert ".md" not in text


def test_a_second_report_leaves_nothing_of_the_first(make, fail, save):
    directory = save([make("mpi-flat", 1), fail("mpi-flat", 2)])
    made(directory)
    (directory / "records" / "00001.jsonl").unlink()
    made(directory)
    assert not (directory / "tables" / "failed.csv").exists()


def command(*arguments):
    root = Path(report.__file__).parents[1]
    line = [sys.executable, "-m", "analysis.report", *map(str, arguments)]
    return subprocess.run(line, cwd=root, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_the_command_line(make, save):
    directory = save([make(block=1)])
    done = command(directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{directory / 'report.html'}\n")
    done = command(directory / "none")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: directory"),
        (["a", "b"], "unrecognized arguments: b"),
        (["--margin", "0.1", "a"], "unrecognized arguments: --margin"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_status_2(capsys, arguments, said):
    assert report.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and said in err and err.count("\n") == 1


@pytest.mark.parametrize("content", ["directory", "records", "schema"])
def test_bad_input_is_one_line_and_exit_status_2(tmp_path, make, capsys, content):
    said = {"directory": "no such directory", "records": "no records", "schema": "schema '2.0' cannot be read"}[content]
    if content == "schema":
        (tmp_path / "new.jsonl").write_bytes(records.encode(make(schema="2.0")))
    assert report.main([str(tmp_path / "none" if content == "directory" else tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and said in err and err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_the_analysis_imports_nothing_that_trains():
    code = (
        "import sys, analysis.report; print(sorted({'torch', 'mpi4py', 'horovod', 'hvdkan.config'} & set(sys.modules)))"
    )
    root = Path(report.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("key", ["config_transport", "config_backend", "config_operator", "config_task"])
def test_a_lone_surrogate_in_a_setting_is_only_text(make, save, key):
    changes = {key: "\ud800", "workers": 1, "nodes": None}
    page = made(save([make("ddp-1", 1, **changes), make("ddp-1", 2, **changes)]))
    assert page.source.encode()


HUGE = [
    {"samples_per_s": 1e308},
    {"samples_per_s": 1e-308},
    {"peak_memory_bytes": 1e308},
    {"test_loss": 1e308},
    {"epoch_loss": [1e308]},
    {"parameters": {"all": 1e308, "trainable": 1440}},
    {"exposed": {"fraction": 1e308, "with_s": 1e308, "without_s": 1e308}},
    {"step_s": [1e308] * 5},
    {"step_s": [1e-308] * 5},
    {"step_s": [0.004] * 99 + [1e308]},
    {"exchange_s": [1e308] * 5},
    {"block": 10**30},
    {"attempt": 1e308},
    {"placement": "9" * 400 + "G1N"},
    {"grad_bytes": 1e308},
    {"config_operator": ["pykan"]},
    {"effective": {"allreduce": ["flat"]}},
    {"environment": {"a": json.loads("[" * 90 + "]" * 90)}},
]


@pytest.mark.parametrize("change", HUGE, ids=lambda change: str(change)[:40])
def test_numbers_of_no_world_cost_their_own_record_and_give_no_odd_cell(make, save, change):
    places = {1: {"workers": 1, "nodes": None}, 2: {"workers": 2, "nodes": None}}
    made_ = [make(f"mpi-{n}", block, **places[n]) for n in (1, 2) for block in (1, 2)]
    settings = {key: value for key, value in change.items() if key.startswith("config_")}
    keys = {key: value for key, value in change.items() if key not in settings}
    made_ += [make("mpi-2", block, **places[2], **settings) | keys for block in (3, 4)] + [
        make("mpi-1", 3, **places[1])
    ]
    directory = save(made_)
    page = made(directory)
    cells = [cell for path in (directory / "tables").iterdir() for row in csv.reader(path.open()) for cell in row]
    assert not [cell for cell in cells if re.fullmatch(r"-?(nan|inf)", cell)]
    assert not re.search(r"\b(nan|inf)\b", page.text)
    # The two good launches of 2G1N are there, whatever became of the others.
    (row,) = [row for row in table(directory, "scaling") if row["variant"] == "mpi-2"]
    assert float(row[SPEEDUP]) == pytest.approx(2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("study = 5", "study is 5; it must be a text"),
        (
            "blocks = 1000000000000",
            "blocks is 1000000000000; it must be a whole number of at least 1 and at most 10000",
        ),
        ("blocks = 2\n[[variant]]\nname = ['x']", "a variant's name is ['x']; it must be a text"),
        ("x = " + "[" * 5000, "nested too deeply"),
        ("#" * 2**23, "larger than 4,096 KiB"),
        ("/dev/zero", "not a regular file"),
        ("pipe", "not a regular file"),
    ],
    ids=["study", "blocks", "name", "nested", "large", "device", "pipe"],
)
def test_a_hostile_plan_is_one_line_and_not_read_for_ever(make, save, capsys, content, said):
    directory = save([make(block=1)])
    path = directory / "plan.toml"
    if content == "pipe":
        os.mkfifo(path)
    elif content.startswith("/"):
        path.symlink_to(content)
    else:
        path.write_text(content)
    assert report.main([str(directory)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {path}: ") and said in err and err.count("\n") == 1


def test_records_that_cannot_be_read_are_damaged_and_the_others_are_shown(make, save):
    directory = save([make("mpi-flat", 1)])
    os.mkfifo(directory / "records" / "a.jsonl")
    (directory / "records" / "b.jsonl").symlink_to("/proc/self/mem")
    made(directory)
    assert [(row["file"], row["reason"]) for row in table(directory, "damaged")] == [
        ("records/a.jsonl", "not a regular file"), ("records/b.jsonl", "Input/output error"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("redirect", ["| head -1", "2>&-", ">&-", ">&- 2>&-", "> /dev/full 2>&1"])
def test_a_reader_that_goes_away_spoils_nothing(make, save, redirect):
    directory = save([make(block=1)])
    line = f"set -o pipefail; PYTHONUNBUFFERED=1 {sys.executable} -m analysis.report {directory} {redirect}"
    root = Path(report.__file__).parents[1]
    done = subprocess.run(["bash", "-c", line], cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (directory / "report.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert (directory / "tables" / "variants.csv").is_file()


@pytest.mark.slow
def test_a_directory_whose_name_is_no_text(make, save, tmp_path):
    directory = save([make(block=1)]).rename(tmp_path.parent / os.fsdecode(b"\xff"))
    done = command(os.fsencode(directory).decode(errors="surrogateescape"))
    assert (done.returncode, done.stderr) == (0, "")
    directory.rename(tmp_path)


@pytest.mark.slow
def test_two_reports_at_once_both_succeed(quick, plan, save):
    directory = save(quick(), plan)
    root = Path(report.__file__).parents[1]
    line = [sys.executable, "-m", "analysis.report", str(directory)]
    both = [subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(one.communicate(timeout=120)[1], one.returncode) for one in both] == [(b"", 0)] * 2
    assert sorted(path.name for path in directory.iterdir()) == ["plan.toml", "records", "report.html", "tables"]
    assert not [path for path in (directory / "tables").iterdir() if path.suffix != ".csv"]


def test_the_files_of_a_report_replace_each_other_whole_and_under_names_of_their_own(make, save, monkeypatch):
    """What a second report sees and does between any two steps of the first harms neither."""
    directory = save([make(block=1)])
    inner, steps = report.write_csv, []

    def between(one, tables):
        written = inner(one, tables)
        if not steps:
            steps.append(one.name)
            made(directory)
        return written

    monkeypatch.setattr(report, "write_csv", between)
    made(directory)
    assert steps and not [path for path in directory.rglob("*") if path.suffix == ".part"]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_says_nothing(make, save):
    directory = save([make(block=1)])
    root = Path(report.__file__).parents[1]
    line = [sys.executable, "-m", "analysis.report", str(directory)]
    clean = {k: v for k, v in os.environ.items() if k not in ("MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    for places in ({"HOME": "/proc/none"}, {"MPLCONFIGDIR": "/proc/none"}):
        done = subprocess.run(line, cwd=root, capture_output=True, text=True, env=clean | places, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")
