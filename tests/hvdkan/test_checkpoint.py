import pytest
import torch

from hvdkan import checkpoint
from hvdkan.config import Config, ConfigError
from hvdkan.pykan import to_pykan

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


@pytest.mark.parametrize("content", [{}, {"config": 3}, {"config": {"hidden": [2]}, "state": {"x": torch.ones(1)}}])
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
