import argparse
import dataclasses
import subprocess
import sys

import pytest

from hvdkan.config import VARIABLE, Config, ConfigError, from_command_line, parser


def refusal(*flags, environment=None):
    with pytest.raises(ConfigError) as raised:
        from_command_line(flags, environment or {})
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_defaults_are_the_papers():
    config = from_command_line([], {})
    assert (config.hidden, config.grid, config.order, config.task) == ((32,), 10, 3, "squares")
    assert (config.samples, config.epochs, config.backend, config.allreduce) == (100_000, 40, "horovod", "stock")
    assert config == Config() == Config.from_dict({})


def test_every_field_is_a_flag():
    flags = {action.dest for action in parser()._actions if not isinstance(action, argparse._HelpAction)}
    assert flags == {field.name for field in dataclasses.fields(Config)}


def test_hidden_takes_a_width_or_several():
    assert from_command_line(["--hidden", "64"], {}).hidden == (64,)
    assert from_command_line(["--hidden", "64,32"], {}).hidden == (64, 32)
    assert from_command_line(["--hidden", "64", "32"], {}).hidden == (64, 32)
    assert Config(hidden=8).hidden == (8,)


@pytest.mark.parametrize(
    ("flags", "value", "choices"),
    [
        (["--backend", "nccl"], "'nccl'", "single, horovod, ddp, mpi"),
        (["--operator", "kan"], "'kan'", "spline, matrix, pykan, mlp"),
        (["--task", "cubes"], "'cubes'", "squares"),
        (["--allreduce", "ring"], "'ring'", "stock, flat, hierarchical"),
        (["--engine", "warp", "--allreduce", "flat"], "'warp'", "auto, process_sets, nccl, torus, han, builtin"),
        (["--engine", "hook", "--backend", "ddp"], "'hook'", "it must be one of auto"),
        (["--samples", "-5"], "-5", "at least 1"),
        (["--samples", "1e5"], "'1e5'", "a whole number"),
        (["--samples", "99999999999999999999"], "'99999999999999999999'", "a whole number"),
        (["--samples", "9999999999"], "9999999999", "at most 1000000000"),
        (["--threads", "100000"], "100000", "at most 1024"),
        (["--hidden", "32,2000000"], "32,2000000", "at most 1000000"),
        (["--order", "0"], "0", "at least 1"),
        (["--order", "2.5"], "'2.5'", "a whole number"),
        (["--grid", "3.0"], "'3.0'", "a whole number"),
        (["--hidden", "32,-1"], "-1", "at least 1"),
        (["--hidden", "32,"], "'32,'", "whole numbers"),
        (["--hidden", "0"], "0", "at least 1"),
        (["--noise", "nan"], "nan", "a number of at least 0"),
        (["--noise", "loud"], "'loud'", "a number"),
        (["--learning-rate", "0"], "0.0", "above 0"),
        (["--learning-rate", "inf"], "inf", "above 0"),
        (["--simulate-nodes", "2,x"], "'2,x'", "whole numbers"),
        (["--record", ""], "''", "not empty"),
        (["--label", "colour=red"], "'colour=red'", "study, block, order"),
        (["--batch-size", "200000"], "200000", "more than --samples 100000"),
        (["--global-batch-size", "200000"], "200000", "more than --samples 100000"),
        (["--batch-size", "5", "--global-batch-size", "5"], "--global-batch-size", "use one of them"),
        (["--backend", "mpi", "--engine", "ring", "--allreduce", "hierarchical"], "'ring'", "auto, two_level, leader"),
        (["--backend", "mpi", "--engine", "warp", "--allreduce", "flat"], "'warp'", "leader, flat, ring"),
        (["--backend", "mpi", "--engine", "two_level(cross=x)", "--allreduce", "flat"], "cross of two_level is 'x'",
         "flat, ring, recursive_doubling"),
        (["--backend", "mpi", "--engine", "ring(chunks=99)", "--allreduce", "flat"], "'99'", "from 1 to 64"),
        (["--backend", "mpi", "--engine", "ring(" + "x" * 500, "--allreduce", "flat"], "ring(xxx", "it must be one of"),
        (["--backend", "mpi", "--engine", "ring", "--allreduce", "auto"], "'ring'", "it must be one of auto"),
        (["--backend", "mpi", "--engine", "ring"], "'ring'", "it must be one of auto"),
        (["--allreduce", "auto"], "'auto'", "--backend horovod it must be one of stock, flat, hierarchical"),
        (["--backend", "ddp", "--transport", "mpi", "--allreduce", "auto"], "'auto'", "stock, flat, hierarchical"),
        (["--backend", "mpi", "--allreduce-table", "x"], "--allreduce-table", "--allreduce is 'stock'"),
        (["--backend", "mpi", "--transport", "mpi"], "--transport", "horovod and ddp"),
        (["--backend", "ddp", "--engine", "ring", "--allreduce", "flat"], "'ring'", "auto, hook, builtin"),
        (["--backend", "ddp", "--no-overlap", "--fusion-mb", "1"], "--no-overlap", "use one of them"),
        (["--backend", "mpi", "--compression", "fp16"], "'fp16'", "must be none"),
        (["--backend", "ddp", "--transport", "mpi", "--compression", "fp16"], "'fp16'", "must be none"),
        (["--compression", "fp8"], "'fp8'", "none, fp16"),
        (["--backend", "single", "--fusion-mb", "1"], "--fusion-mb", "single"),
        (["--backend", "single", "--no-overlap"], "--no-overlap", "single"),
        (["--backend", "single", "--compression", "fp16"], "--compression fp16", "single"),
        (["--cycle-time-ms", "1", "--backend", "mpi"], "--cycle-time-ms", "--backend horovod"),
        (["--no-symbolic"], "--no-symbolic", "--operator pykan"),
        (["--simulate-nodes", "1", "--backend", "single"], "--simulate-nodes", "single"),
        (["--data", "t.xlsx", "--target", "y"], "'t.xlsx'", "ends in .csv, .npz, .parquet"),
        (["--data", "t.csv"], "--data", "needs --target COLUMN"),
        (["--data", "t.csv", "--target", "y", "--task", "squares"], "--task squares", "use one of them"),
        (["--target", "y"], "--target", "--data FILE, which is not given"),
        (["--inputs", "a,b"], "--inputs", "--data FILE, which is not given"),
        (["--task", "table"], "--task table", "needs --data FILE"),
        (["--data", "t.csv", "--target", "y", "--inputs", "a,y"], "'y'", "predicted from itself"),
        (["--data", "t.csv", "--target", "y", "--inputs", "a,,b"], "''", "not empty"),
        (["--data", "t.csv", "--target", "y", "--inputs", "a,a"], "('a', 'a')", "each once"),
        (["--data", "t.csv", "--target", "y", "--noise", "0.1"], "--noise is 0.1", "must be 0 with --task table"),
        (["--task", "diabetes", "--noise", "0.1"], "--noise is 0.1", "must be 0 with --task diabetes"),
        (["--speed"], "--speed", ""),
        (["--sampl", "5"], "--sampl", ""),
        (["--samples"], "--samples", "expected one argument"),
    ],
)  # fmt: skip
def test_bad_values_are_named_with_the_choices(flags, value, choices):
    text = refusal(*flags)
    assert value in text
    assert choices in text


@pytest.mark.parametrize(("value", "allreduce"), [("0", "flat"), ("1", "hierarchical")])
def test_horovods_variable_is_heard(value, allreduce):
    assert from_command_line([], {VARIABLE: value}).allreduce == allreduce
    assert from_command_line(["--allreduce", "stock"], {VARIABLE: value}).allreduce == "stock"


@pytest.mark.parametrize("value", ["true", "", "2", " 1", "yes"])
def test_horovods_variable_takes_nothing_else(value):
    assert repr(value) in refusal(environment={VARIABLE: value})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"epoch": 3}, "unknown setting 'epoch'; the settings are backend"),
        ({"epochs": True}, "--epochs is True"),
        ({"epochs": 3.0}, "--epochs is 3.0"),
        ({"hidden": [32, "x"]}, "--hidden is [32, 'x']"),
        ({"hidden": []}, "--hidden is []"),
        ({"dtype": 32}, "--dtype is 32"),
        ({"symbolic": 1}, "--symbolic is 1"),
        ({"record": "a\nb"}, "'a\\nb'"),
    ],
)
def test_a_plans_values_are_checked_alike(settings, text):
    with pytest.raises(ConfigError) as raised:
        Config.from_dict(settings)
    assert text in str(raised.value)


def test_an_algorithm_is_recorded_by_one_name():
    config = Config(backend="mpi", allreduce="hierarchical", engine="two_level( cross = flat , chunks=4 )")
    assert config.engine == "two_level(chunks=4)"
    assert Config.from_dict(config.to_dict()) == config
    config = Config(backend="ddp", transport="mpi", allreduce="flat", engine="leader(cross=ring)")
    assert config.engine == "leader"


def test_settings_are_read_without_torch_and_mpi():
    """What launches jobs runs on login nodes that have neither."""
    code = "import sys, hvdkan.config; sys.exit('torch' in sys.modules or 'mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_global_batch():
    assert Config().global_batch(4) == 4000
    assert Config(samples=1500).global_batch(4) == 1500
    assert Config(batch_size=10).global_batch(4) == 40
    assert Config(global_batch_size=10).global_batch(4) == 10
    with pytest.raises(ConfigError, match="--batch-size 600 on 2 ranks is 1200 a step, more than --samples 1000"):
        Config(samples=1000, batch_size=600).global_batch(2)


def test_numbers_of_a_table_are_not_known_before_it_is_read():
    config = from_command_line(["--data", "t.csv", "--target", "y", "--inputs", "a, b"], {})
    assert (config.task, config.inputs) == ("table", ("a", "b"))
    assert (config.samples, config.test_samples, config.noise) == (None, None, 0.0)
    assert config.global_batch(4) == 4000
    assert dataclasses.replace(config, samples=500, test_samples=9).global_batch(4) == 500
    with pytest.raises(ConfigError, match="--batch-size is 501, more than --samples 500"):
        dataclasses.replace(config, batch_size=501, samples=500)
    assert Config.from_dict(config.to_dict()) == config
    assert Config(task="diabetes").samples is None
    assert (Config().samples, Config().test_samples, Config().noise) == (100_000, 1000, 0.1)


def test_it_is_imported_without_what_only_some_tasks_need(alone):
    program = "import sys, hvdkan.config; print({'torch', 'scipy', 'sklearn', 'pandas', 'pyarrow'} & set(sys.modules))"
    assert alone("-c", program).stdout.strip() == "set()"


def test_labels():
    config = Config(label=("study=quick", "block=3", "variant=a=b"))
    assert config.labels() == {"study": "quick", "block": 3, "variant": "a=b"}
    with pytest.raises(ConfigError, match="--label block is 'x'"):
        Config(label=("block=x",)).labels()


def test_round_trip():
    config = Config(hidden=(4, 5), simulate_nodes=(2, 2), label=("study=a",))
    assert Config.from_dict(config.to_dict()) == config
