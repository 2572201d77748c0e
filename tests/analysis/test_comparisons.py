import math

import pytest

from analysis import comparisons, findings, hierarchy, scaling, stats
from analysis.comparisons import HIERARCHY, Pair

TWINS = Pair("mpi-flat", "mpi-hierarchical", HIERARCHY)


def both(make, blocks=3, flat=None, hierarchical=None, ratio=1.1):
    made = []
    for block in range(1, blocks + 1):
        made.append(make("mpi-flat", block, 0.004, **(flat or {})))
        made.append(make("mpi-hierarchical", block, 0.004 * ratio * (1 + block / 1000), **(hierarchical or {})))
    return made


def test_pairs_are_compared_within_their_block(make, study):
    made = [make("mpi-flat", block, 0.004 * block) for block in (1, 2, 3)]
    made += [make("mpi-hierarchical", block, 0.006 * block) for block in (2, 3, 4)]
    result = comparisons.compare(study(made), TWINS)
    assert list(result.logs.values()) == pytest.approx([math.log(1.5)] * 2)
    assert (result.effect.n, result.effect.dropped) == (2, 2)
    # Absolute times are those of the same two pairs.
    assert (result.baseline_s, result.candidate_s) == pytest.approx(
        (math.sqrt(0.008 * 0.012), math.sqrt(0.012 * 0.018))
    )


def test_four_times_the_samples_are_refused_by_name(make, study):
    result = comparisons.compare(study(both(make, hierarchical={"config_samples": 80000})), TWINS)
    assert result.effect is None
    assert "samples (80,000 against 20,000)" in result.refusal


def test_one_back_end_that_sees_every_sample_on_every_rank_is_refused(make, study):
    made = []
    for block in (1, 2, 3):
        made += [make("ddp-2g", block, workers=2, nodes=None)]
        made += [make("horovod-2g", block, workers=2, nodes=None, samples_seen=[40000, 40000])]
    loaded = study(made)
    (pair,) = hierarchy.backends(loaded)
    assert "samples seen (40,000, 40,000 against 20,000, 20,000)" in comparisons.compare(loaded, pair).refusal


def test_what_did_not_run_as_asked_is_no_hierarchical_launch(make, study):
    changes = {"ran": "flat"}
    result = comparisons.compare(study(both(make, hierarchical=changes)), TWINS)
    assert result.effect is None
    assert "hierarchical asked for, flat ran" in result.refusal


def test_launches_that_ran_otherwise_are_left_out_and_said(make, study):
    made = [*both(make), make("mpi-flat", 4), make("mpi-hierarchical", 4, ran="flat")]
    result = comparisons.compare(study(made), TWINS)
    assert (result.effect.n, result.effect.dropped) == (3, 1)
    assert any("flat ran" in note for note in result.notes)


def test_failures_are_dropped_pairs(make, fail, study):
    made = [*both(make), make("mpi-flat", 4), fail("mpi-hierarchical", 4)]
    assert comparisons.compare(study(made), TWINS).effect.n == 3
    only = comparisons.compare(study([make("mpi-flat", 1), fail("mpi-hierarchical", 1)]), TWINS)
    assert only.refusal == "no usable launch of mpi-hierarchical: failed: OSError"
    absent = comparisons.compare(study([make("mpi-flat", 1)]), TWINS)
    assert absent.refusal == "no launch of mpi-hierarchical"


def test_twins_are_found_without_a_plan(make, study):
    made = [*both(make), make("ddp-flat", 1), make("horovod-hierarchical", 1), make("mpi-2g", 1, workers=2, nodes=None)]
    made += [make("mpi-hierarchical-wide", 1, config_hidden=[64])]
    pairs = hierarchy.twins(study(made))
    assert [(pair.baseline, pair.candidate, pair.primary) for pair in pairs] == [
        ("mpi-flat", "mpi-hierarchical", False)
    ]


def test_the_twin_has_the_same_engine_where_there_are_two(make, study):
    made = both(make, flat={"config_engine": "two_level"}, hierarchical={"config_engine": "two_level"})
    made += [make("mpi-a-flat", block, config_engine="flat") for block in (1, 2, 3)]
    assert [pair.baseline for pair in hierarchy.twins(study(made))] == ["mpi-flat"]


def test_a_plan_names_its_primary_pairs_and_repeats(quick, plan, study):
    loaded = study(quick(), plan)
    assert [pair.primary for pair in hierarchy.twins(loaded)] == [True] * 3
    assert [(pair.baseline, pair.candidate) for pair in hierarchy.repeats(loaded)] == [("mpi-flat", "mpi-flat-again")]
    assert hierarchy.others(loaded) == []


def test_repeats_are_found_without_a_plan(quick, study):
    pairs = hierarchy.repeats(study(quick()))
    assert [(pair.baseline, pair.candidate) for pair in pairs] == [("mpi-flat", "mpi-flat-again")]


def test_stock_back_ends_over_different_transports_are_compared_and_labelled(quick, study):
    loaded = study(quick())
    results = {pair.candidate: comparisons.compare(loaded, pair) for pair in hierarchy.backends(loaded)}
    assert results["horovod-2g"].notes == ("stock against stock", "transports differ: mpi against gloo")
    assert results["horovod-1g"].notes == ("stock against stock", "one worker, so nothing is exchanged")
    assert results["horovod-flat"].refusal == "transports differ (mpi against gloo)"


def test_equal_transports_are_compared(make, study):
    over_gloo = {"requested": {"allreduce": "flat", "transport": "gloo"}}
    over_gloo["effective"] = {"allreduce": "flat", "engine": "builtin", "transport": "gloo"}
    loaded = study([make("ddp-flat", 1), make("horovod-flat", 1, **over_gloo)])
    (pair,) = hierarchy.backends(loaded)
    assert comparisons.compare(loaded, pair).notes == ("both over gloo",)


def gloo(make, name, block=1, **changes):
    """Horovod with its transport set to Gloo."""
    made = make(name, block, config_transport="gloo", **changes)
    made["requested"]["transport"] = made["effective"]["transport"] = "gloo"
    return made


def test_horovod_is_compared_over_each_transport_and_each_is_labelled(make, study):
    two = {"workers": 2, "nodes": None}
    made = [make(f"{name}-2", block, config_transport="auto", **two) for name in ("horovod", "ddp") for block in (1, 2)]
    made += [gloo(make, "horovod-gloo-2", block, **two) for block in (1, 2)]
    loaded = study(made)
    pairs = hierarchy.backends(loaded)
    assert [(pair.baseline, pair.candidate) for pair in pairs] == [("ddp-2", "horovod-2"), ("ddp-2", "horovod-gloo-2")]
    results = comparisons.judged([comparisons.compare(loaded, pair) for pair in pairs])
    named = findings.labels(loaded, results)
    assert [label for label, _ in named] == ["horovod / ddp, stock on 2G1N", "horovod over gloo / ddp, stock on 2G1N"]
    assert [result.notes[-1] for result in results] == ["transports differ: mpi against gloo", "both over gloo"]
    said = [findings.comparison(label, result, loaded) for label, result in named]
    assert "horovod stock on 2G1N took 1.00 times the step time of ddp stock (" in said[0]
    assert "horovod over gloo stock on 2G1N took 1.00 times the step time of ddp stock (" in said[1]


def test_a_scheduled_all_reduce_is_compared_at_equal_transport_only(make, study):
    made = [make("ddp-flat", 1, config_transport="auto"), make("horovod-flat", 1, config_transport="auto")]
    loaded = study([*made, gloo(make, "horovod-gloo-flat")])
    results = {pair.candidate: comparisons.compare(loaded, pair) for pair in hierarchy.backends(loaded)}
    assert results["horovod-gloo-flat"].notes == ("both over gloo",)
    assert results["horovod-flat"].refusal == "transports differ (mpi against gloo)"


def test_the_nearest_of_several_baselines_has_the_same_transport(make, study):
    over_mpi = make("ddp-a-2", 1, workers=2, nodes=None, config_transport="mpi")
    over_mpi["requested"]["transport"] = over_mpi["effective"]["transport"] = "mpi"
    over_gloo = make("ddp-b-2", 1, workers=2, nodes=None)
    loaded = study([over_mpi, over_gloo, gloo(make, "horovod-gloo-2", workers=2, nodes=None)])
    assert [pair.baseline for pair in hierarchy.backends(loaded)] == ["ddp-b-2"]


def test_pairs_that_share_a_short_name_are_told_apart_by_their_own(make, study):
    made = []
    for width in (32, 64):
        made += [
            make(f"{name}-1-{width}", 1, workers=1, nodes=None, config_hidden=[width]) for name in ("horovod", "ddp")
        ]
    loaded = study(made)
    results = comparisons.judged([comparisons.compare(loaded, pair) for pair in hierarchy.backends(loaded)])
    said = [findings.comparison(label, result, loaded) for label, result in findings.labels(loaded, results)]
    assert "horovod-1-32 took 1.00 times the step time of ddp-1-32 (" in said[0]


def calls(*names):
    seen = [f"{name} over {4 - place}: {1440 - place}" for place, name in enumerate(names)]
    return {"allreduce": "flat", "engine": "two_level", "transport": "mpi", "evidence": {"calls": seen}}


@pytest.mark.parametrize(
    ("flat", "hierarchical", "noted"),
    [
        (("scatter", "allreduce", "gather"), ("scatter", "allreduce", "gather"), None),
        (("scatter", "allreduce", "gather"), ("allreduce", "allreduce", "gather"),
         "calls differ (allreduce, allreduce, gather against scatter, allreduce, gather), so these are no exact twins"),
        (("scatter",), (), None),
    ],
)  # fmt: skip
def test_twins_whose_calls_differ_are_no_exact_ones(make, study, flat, hierarchical, noted):
    made = both(make, flat={"effective": calls(*flat)})
    for record in made:
        if record["variant"] == "mpi-hierarchical":
            record["effective"] = calls(*hierarchical) | {"allreduce": "hierarchical"}
    assert comparisons.compare(study(made), TWINS).notes == ((noted,) if noted else ())


def test_a_twin_with_a_name_of_its_own_is_a_twin(make, study):
    """The flat twin of two_level(cross=ring) is a ring over all ranks, and the record says so."""
    name = "two_level(cross=ring)"
    made = both(make, flat={"config_engine": name}, hierarchical={"config_engine": name})
    for record in made:
        hierarchical = record["variant"] == "mpi-hierarchical"
        record["requested"]["engine"] = name
        record["effective"] |= {"engine": name if hierarchical else "ring"}
        record["effective"]["evidence"] = {"calls": ["MPI_Isend over 3: 96"]}
        if not hierarchical:
            record["effective"]["evidence"]["twin_of"] = name
    loaded = study(made)
    assert set(loaded.launches["mismatch"]) == {""}
    result = comparisons.compare(loaded, TWINS)
    assert (result.refusal, result.notes) == ("", ())
    del made[0]["effective"]["evidence"]["twin_of"]
    assert set(study(made).launches["mismatch"]) == {"", f"engine {name} asked for, ring ran"}


def test_settings_of_the_exchange_are_compared_where_a_plan_compares_them(make, study):
    plan = 'primary = [["mpi-flat", "mpi-flat-after"], ["mpi-flat", "mpi-hierarchical"]]'
    made = both(make, hierarchical={"config_overlap": False})
    made += [make("mpi-flat-after", block, config_overlap=False) for block in (1, 2, 3)]
    loaded = study(made, plan)
    (pair,) = hierarchy.others(loaded)
    assert (pair.candidate, comparisons.compare(loaded, pair).refusal) == ("mpi-flat-after", "")
    assert "overlap (False against True) differ" in comparisons.compare(loaded, TWINS).refusal


def test_compressed_gradients_are_not_the_same_work(make, study):
    plan = 'primary = [["mpi-flat", "mpi-flat-fp16"]]'
    made = [make("mpi-flat", 1), make("mpi-flat-fp16", 1, config_compression="fp16", grad_bytes=2880)]
    (pair,) = hierarchy.others(study(made, plan))
    assert "bytes on the wire (2,880 against 5,760)" in comparisons.compare(study(made, plan), pair).refusal


def test_operators_are_compared_with_pykan(quick, study):
    loaded = study(quick())
    (pair,) = hierarchy.operators(loaded)
    assert (pair.baseline, pair.candidate) == ("horovod-1g-pykan", "horovod-1g")


def test_what_pykan_trains_besides_is_noted_on_one_worker_and_refused_on_more(make, study):
    more = {"parameters": {"all": 2726, "trainable": 1824}, "grad_bytes": 7296, "config_operator": "pykan"}
    for workers in (1, 2):
        made = [make("mpi-a", 1, workers=workers, nodes=None), make("mpi-b", 1, workers=workers, nodes=None, **more)]
        loaded = study(made)
        (pair,) = hierarchy.operators(loaded)
        result = comparisons.compare(loaded, pair)
        if workers == 1:
            assert result.notes == ("spline trains 1,440 parameters and pykan trains 1,824 parameters",)
        else:
            assert "bytes on the wire (5,760 against 7,296)" in result.refusal


def test_holm_runs_over_primary_pairs_only(make, study):
    made = both(make, blocks=8, ratio=1.2)
    loaded = study(made)
    plain = comparisons.compare(loaded, TWINS)
    primary = comparisons.compare(loaded, Pair("mpi-flat", "mpi-hierarchical", HIERARCHY, primary=True))
    refused = comparisons.compare(loaded, Pair("x", "y", HIERARCHY, primary=True))
    judged = comparisons.judged([plain, primary, primary, refused])
    assert judged[0].effect.holm is None and judged[0].effect.p == 2 / 2**8
    # Three named comparisons, one of which could not be made: the family is still three.
    assert judged[1].effect.holm == pytest.approx(3 * 2 / 2**8)
    assert judged[1].effect.verdict == stats.SLOWER
    assert judged[3].refusal


def test_the_size_of_the_family_counts_in_what_would_settle_it(make, study):
    made = []
    for block in range(1, 9):
        made += [make("mpi-flat", block), make("mpi-hierarchical", block, 0.004 * (1.06 if block % 2 else 0.99))]
    loaded = study(made)
    primary = Pair("mpi-flat", "mpi-hierarchical", HIERARCHY, primary=True)
    judged = comparisons.judged([comparisons.compare(loaded, pair) for pair in (primary, primary, primary, TWINS)])
    assert [result.effect.verdict for result in judged] == [stats.INCONCLUSIVE] * 4
    assert judged[0].effect.blocks_needed > judged[3].effect.blocks_needed


def test_a_planned_pair_without_a_record_is_named_by_its_plan(make, study):
    plan = "primary = [['mpi-flat', 'mpi-hierarchical']]\n[common]\nbackend = 'mpi'\n"
    plan += "[[variant]]\nname = 'mpi-hierarchical'\nallreduce = 'hierarchical'\n"
    loaded = study([make("mpi-flat", 1)], plan)
    (pair,) = hierarchy.twins(loaded)
    assert pair.primary
    assert comparisons.compare(loaded, pair).refusal == "no launch of mpi-hierarchical"
    assert findings.labels(loaded, [comparisons.compare(loaded, pair)])[0][0] == "mpi hierarchical / flat"


def test_simulated_nodes_are_never_a_network(make, study):
    result = comparisons.judged([comparisons.compare(study(both(make)), TWINS)])[0]
    assert result.world.startswith("on 2 simulated nodes of one host - says nothing about a network")
    assert result.marks == ("simulated nodes", "more threads than cores")


@pytest.mark.parametrize(
    ("change", "world"),
    [
        ({"simulated_topology": False, "emulated": True, "oversubscribed": False}, "on this emulated cluster"),
        ({"simulated_topology": False, "oversubscribed": False}, "on this cluster"),
        ({"simulated_topology": False, "oversubscribed": False, "placement": "4G1N"}, "on one node"),
    ],
)
def test_sentences_name_their_world(make, study, change, world):
    assert comparisons.compare(study(both(make, flat=change, hierarchical=change)), TWINS).world == world


def test_the_sentence_of_few_blocks(make, study):
    loaded = study(both(make))
    result = comparisons.judged([comparisons.compare(loaded, TWINS)])[0]
    sentence = findings.comparison("mpi", result, loaded)
    assert sentence.startswith(
        "no verdict possible from 3 blocks: mpi hierarchical on 4G2N took 1.10 times its flat twin's step time "
        "(geometric means; 4.41 against 4.00 ms), 95% interval 1.10 to 1.10, faster in 0 of 3 pairs, on simulated"
    )


def test_the_sentence_of_one_block_gives_no_interval(make, study):
    loaded = study(both(make, blocks=1))
    result = comparisons.judged([comparisons.compare(loaded, TWINS)])[0]
    assert "from 1 block: " in (sentence := findings.comparison("mpi", result, loaded))
    assert "95% interval n/a" in sentence and "faster in 0 of 1 pair," in sentence


def test_an_interval_over_powers_of_ten_is_not_printed(make, study):
    made = [make("mpi-flat", 1), make("mpi-hierarchical", 1), make("mpi-flat", 2), make("mpi-hierarchical", 2, 0.02)]
    loaded = study(made)
    result = comparisons.judged([comparisons.compare(loaded, TWINS)])[0]
    assert "95% interval too wide to be of use" in findings.comparison("mpi", result, loaded)


def test_the_sentence_of_enough_blocks_has_a_verdict(make, study):
    loaded = study(both(make, blocks=8, ratio=0.8))
    result = comparisons.judged([comparisons.compare(loaded, TWINS)])[0]
    sentence = findings.comparison("mpi", result, loaded)
    assert sentence.startswith("faster (8 blocks): mpi hierarchical on 4G2N took 0.804 times")
    assert "exploratory, faster in 8 of 8 pairs" in sentence


def test_the_noise_floor_is_the_spread_of_repeats(make, study):
    ratios = [1.02, 0.97, 1.05]
    made = [make("mpi-flat", block) for block in (1, 2, 3)]
    made += [make("mpi-flat-again", block, 0.004 * ratio) for block, ratio in enumerate(ratios, start=1)]
    loaded = study(made)
    (pair,) = hierarchy.repeats(loaded)
    sentence = findings.noise_floor(loaded, [comparisons.compare(loaded, pair)], [])
    logs = [math.log(ratio) for ratio in ratios]
    sd = math.sqrt(sum((x - sum(logs) / 3) ** 2 for x in logs) / 2)
    assert f"{100 * (math.exp(sd) - 1):.1f}%" in sentence
    wild = [make("mpi-flat", 1), make("mpi-flat-again", 1, 0.04), make("mpi-flat", 2), make("mpi-flat-again", 2)]
    loaded = study(wild)
    assert "a factor of 5.1" in findings.noise_floor(
        loaded, [comparisons.compare(loaded, pair)], []
    )  # 10 ** (1 / sqrt 2)
    assert findings.noise_floor(loaded, [], []).startswith("Noise floor: n/a")


def test_a_noise_floor_says_what_it_is_a_yardstick_for(quick, plan, study):
    loaded = study(quick(), plan)
    repeats = [comparisons.compare(loaded, pair) for pair in hierarchy.repeats(loaded)]
    pairs = [*hierarchy.twins(loaded), *hierarchy.backends(loaded), *hierarchy.operators(loaded)]
    named = findings.labels(loaded, [comparisons.compare(loaded, pair) for pair in pairs])
    sentence = findings.noise_floor(loaded, repeats, named)
    assert "% for mpi on 4G2N (mpi-flat-again / mpi-flat, 3 blocks)" in sentence
    # Neither other back ends nor another placement nor pykan: five measured comparisons are of another kind.
    assert sentence.endswith(
        "A smaller difference in a single pair of mpi hierarchical / flat on 4G2N is noise; for 5 other comparisons no "
        "A/A pair was run."
    )
    others = [(label, result) for label, result in named if not label.startswith("mpi")]
    assert findings.noise_floor(loaded, repeats, others).endswith("so none can be held against it.")


def test_what_is_refused_for_one_reason_is_one_sentence(quick, plan, study):
    loaded = study(quick(), plan)
    named = findings.labels(loaded, [comparisons.compare(loaded, pair) for pair in hierarchy.backends(loaded)])
    assert findings.refused(named) == [
        "not compared: horovod / ddp, flat and horovod / ddp, hierarchical: transports differ (mpi against gloo)."
    ]


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (1, "reached 2.00 times one worker's throughput on 2G1N (geometric mean, 1 block), 100% efficiency"),
        (3, "(geometric mean of 3 blocks, range 1.98 to 2.02)"),
        (8, "(geometric mean of 8 blocks, 95% interval 1.98 to 2.02)"),
    ],
)
def test_a_speedup_has_its_interval_or_its_range(make, study, blocks, said):
    steps = [0.004 * factor for factor in (1, 1.01, 0.99, 1, 1.01, 0.99, 1.01, 0.99)]
    made = [make("mpi-1", block, workers=1, nodes=None) for block in range(1, blocks + 1)]
    made += [make("mpi-2", block, steps[block - 1], workers=2, nodes=None) for block in range(1, blocks + 1)]
    (sentence,) = findings.scaling(scaling.strong(study(made)))
    assert said in sentence


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (1, "13% of a step (mpi-a, 1 launch); medians over launches"),
        (5, "15% of a step (mpi-a, range 13 to 17%, 5 launches); medians over launches"),
        (9, "17% of a step (mpi-a, 95% interval 14 to 20%, 9 launches); medians over launches"),
    ],
)
def test_an_exposed_share_has_its_interval_or_its_range(make, study, blocks, said):
    made = [make("mpi-a", block, exposed={"fraction": 0.12 + block / 100}) for block in range(1, blocks + 1)]
    assert said in findings.exposed(study(made))


def test_where_nothing_could_be_compared_no_number_of_blocks_is_given(make, study):
    loaded = study([make("mpi-flat", 1), make("mpi-hierarchical", 1, ran="flat")])
    result = comparisons.compare(loaded, TWINS)
    assert findings.in_short([("twins", result)]) == "In short: nothing could be compared; the findings say why."
