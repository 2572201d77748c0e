import re
from xml.etree import ElementTree

from analysis import comparisons, plots, scaling, stats
from analysis.comparisons import HIERARCHY, Pair


def texts(figure):
    root = ElementTree.fromstring(figure.svg.replace('xlink:href="', 'href="'))
    return " ".join("".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text"))


def test_every_launch_is_a_point():
    values = [1.0, 2.0, 4.0, float("nan")]
    figure = plots.dots([plots.Row("a", values), plots.Row("empty", [])], "f", "Times", "ms")
    # matplotlib defines a marker once a line and uses it for each point.
    assert len(re.findall(r"<use [^>]*fill-opacity: 0.45|<use [^>]*opacity: 0.45", figure.svg)) == 3
    assert figure.launches == 3 and "Rests on 3 launches" in figure.caption
    assert "a (n = 3)" in texts(figure) and "empty" not in texts(figure)


def test_nothing_to_draw_is_no_figure():
    assert plots.dots([plots.Row("a", [float("nan")])], "f", "Times", "ms") is None
    assert plots.forest([], "f", "Ratios", 0.02) is None
    assert plots.speedup([]) is None


def test_marks_stand_in_the_figure_and_its_caption():
    marks = ("simulated nodes", "more threads than cores", "emulated nodes")
    figure = plots.dots([plots.Row("a", [1.0], marks)], "f", "Times", "ms")
    assert all(word in texts(figure) for word in ("simulated", "oversubscribed", "emulated"))
    assert "With emulated nodes, more threads than cores and simulated nodes." in figure.caption


def test_a_forest_of_one_launch_and_of_extremes(make, study):
    made = []
    for name, ratio in (("one", 1.0), ("huge", 1e6), ("tiny", 1e-6)):
        made += [make(f"mpi-flat-{name}", 1), make(f"mpi-hierarchical-{name}", 1, 0.004 * ratio)]
    loaded = study(made)
    results = []
    for name in ("one", "huge", "tiny"):
        pair = Pair(f"mpi-flat-{name}", f"mpi-hierarchical-{name}", HIERARCHY)
        results.append((name, comparisons.compare(loaded, pair)))
    figure = plots.forest(results, "f", "Ratios", stats.MARGIN)
    assert figure.launches == 6 and "one (n = 1, simulated, oversubscribed)" in texts(figure)


def test_an_endless_interval_does_not_hide_the_points(make, study):
    made = [make("mpi-flat", 1), make("mpi-hierarchical", 1), make("mpi-flat", 2), make("mpi-hierarchical", 2, 0.008)]
    result = comparisons.compare(study(made), Pair("mpi-flat", "mpi-hierarchical", HIERARCHY))
    figure = plots.forest([("a", result)], "f", "Ratios", stats.MARGIN)
    assert result.effect.high > 100 and "Bars that reach the edge go on beyond it." in figure.caption
    ticks = [float(word) for word in texts(figure).split() if re.fullmatch(r"[\d.]+", word)]
    assert ticks and max(ticks) <= 4.5 and min(ticks) >= 0.4


def test_the_ideal_line_and_each_series_are_named(make, study):
    made = [make(f"{b}-{n}g", 1, workers=n, nodes=None) for b in ("horovod", "mpi") for n in (1, 2, 4)]
    figure = plots.speedup(scaling.strong(study(made)))
    assert all(word in texts(figure) for word in ("ideal", "horovod stock", "mpi stock", "1G1N", "4G1N"))
    assert figure.launches == 6
    assert "4.00 at 4G1N" in figure.alt


def test_ids_of_two_figures_differ():
    row = [plots.Row("a", [1.0, 2.0])]
    ids = [set(re.findall(r'\sid="([^"]*)"', plots.dots(row, name, "Times", "ms").svg)) for name in ("first", "second")]
    assert ids[0] and ids[1] and not ids[0] & ids[1]
    svg = '<g id="a"><use href="#a" style="clip: url(#a)"/></g>'
    assert plots.prefixed(svg, "p") == '<g id="p-a"><use href="#p-a" style="clip: url(#p-a)"/></g>'


def test_the_same_data_gives_the_same_figure():
    row = [plots.Row("a", [1.0, 2.0])]
    assert plots.dots(row, "f", "Times", "ms") == plots.dots(row, "f", "Times", "ms")
