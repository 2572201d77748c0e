import pytest
import torch

from hvdkan import checkpoint
from hvdkan.config import Config, ConfigError
from hvdkan.pykan import to_pykan
from hvdkan.tasks import Scaling

TRAIN = (
    "-m",
    "hvdkan.train",
    "--backend",
    "single",
    "--samples",
    "300",
    "--epochs",
    "1",
    "--grid",
    "4",
    "--threads",
    "1",
)


@pytest.mark.launch
@pytest.mark.parametrize("operator", ["spline", "mlp", "pykan"])
def test_a_trained_model_comes_back(alone, tmp_path, operator):
    path = tmp_path / "model.pt"
    done = alone(*TRAIN, "--operator", operator, "--hidden", "3", "--save", path)
    assert done.returncode == 0, done.stderr
    model, config = checkpoint.load(path)
    assert (config.operator, config.hidden, config.grid) == (operator, (3,), 4)
    untrained = checkpoint.model_for(config)
    x = torch.linspace(-1, 1, 10).reshape(5, 2)
    assert not torch.equal(model(x), untrained(x))
    if operator == "spline":
        assert torch.allclose(to_pykan(model)(x), model(x), atol=1e-5)


def test_predictions_are_in_the_units_of_the_table(tmp_path):
    scaling = Scaling(("a", "b"), (10.0, -4.0), (2.0, 0.5), "y", 100.0, 8.0)
    config = Config(data="gone.csv", target="y", hidden=3)
    model = checkpoint.model_for(config, 2)
    checkpoint.save(tmp_path / "model.pt", model, config, scaling)
    predict = checkpoint.predictor(tmp_path / "model.pt")
    assert (predict.columns, predict.target) == (("a", "b"), "y")
    with torch.no_grad():
        seen = model(torch.tensor([[-1.0, 1.0], [0.5, 0.0]]))[:, 0].double().numpy()
    assert predict([[8.0, -3.5], [11.0, -4.0]]).tolist() == (100 + 8 * seen).tolist()
    with pytest.raises(ValueError, match=r"rows have the shape \(3,\); they must be \[n, 2\]"):
        predict([1.0, 2.0, 3.0])


def test_a_formulas_inputs_are_in_its_own_ranges(tmp_path):
    config = Config(task="feynman_I.27.6", hidden=2)
    model = checkpoint.model_for(config)
    checkpoint.save(tmp_path / "model.pt", model, config)
    predict = checkpoint.predictor(tmp_path / "model.pt")
    assert predict.columns == ("d1", "d2", "n")
    with torch.no_grad():
        assert predict([[0.5, 2.0, 1.25]]).tolist() == model(torch.tensor([[-1.0, 1.0, 0.0]]))[:, 0].double().tolist()


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.pt holds no model"):
        checkpoint.load(path)


def test_code_in_a_checkpoint_does_not_run(tmp_path):
    path, proof = tmp_path / "model.pt", tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(proof), "w"))

    torch.save({"format": checkpoint.FORMAT, "config": Evil()}, path)
    with pytest.raises(ConfigError):
        checkpoint.load(path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"config": 3},
        {"config": {"hidden": [2]}, "state": {"x": torch.ones(1)}},
        {"config": {"data": "t.csv", "target": "y"}, "state": {}},
        {"config": {}, "scaling": {"columns": ["a"], "centers": [], "scales": [1.0]}},
        {"config": {}, "scaling": 3},
    ],
)
def test_the_right_format_with_the_wrong_content_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "model.pt"
    torch.save({"format": checkpoint.FORMAT, **content}, path)
    with pytest.raises(ConfigError) as raised:
        checkpoint.load(path)
    assert "\n" not in str(raised.value)


def test_a_saved_model_is_as_readable_as_any_file(tmp_path):
    config = Config(hidden=2)
    checkpoint.save(tmp_path / "model.pt", checkpoint.model_for(config), config)
    (tmp_path / "other").touch()
    assert (tmp_path / "model.pt").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_full_disk_leaves_no_partial_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    config = Config(hidden=2)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path / "model.pt", checkpoint.model_for(config), config)
    assert list(tmp_path.iterdir()) == []
