"""Image classification as whole runs: what they leave, accuracy by hand, and the attention of patches."""

import json
from collections import Counter

import pandas
import pytest
import runs

from attnorm.analysis.loaded_run import load_run
from attnorm.errors import DataError
from attnorm.tasks.images import ImageTask
from attnorm.tasks.task import task_of

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
TASK = "image_classification"


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that has learned something."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    typed = ("task.max_steps=60", "callbacks.attention_stats.every_n_steps=0", "model.query_grid=[2,4]")
    runs.tiny_run(folder, "attention=dnas", *typed, task=TASK)
    return folder


def validation(run):
    return pandas.read_parquet(run / "predictions/validation.parquet")


def digits():
    """The validation images of the tiny runs, from scikit-learn: (number, digit)."""
    from sklearn.datasets import load_digits

    return list(enumerate(load_digits().target))[1079 : 1079 + 40]


def test_predictions_hold_every_image_with_its_digit(learned):
    table, summary = validation(learned), runs.summary_of(learned)
    assert list(table["id"]) == [str(number) for number, _ in digits()]
    assert list(table["reference"]) == [str(digit) for _, digit in digits()]
    right = table["reference"] == table["output"]
    assert list(table["accuracy"]) == [100.0 * it for it in right]
    scores = summary["validation"]
    assert scores["metrics"]["accuracy"] == pytest.approx(100 * right.mean())
    assert right.mean() > 0.3  # 0.1 by chance
    [(digit, count)] = Counter(table["reference"]).most_common(1)
    constant = {"accuracy": pytest.approx(100 * count / 40), "macro_f1": pytest.approx(20 * count / (count + 40))}
    assert scores["baselines"] == {f"always {digit}": constant}
    assert summary["monitor"] == "val/accuracy" and summary["primary"] == "accuracy" == ImageTask.primary
    assert table["selecting"].sum() == 20
    hashes = table["input_hash"]  # of the text, and of the image
    assert hashes.str.fullmatch("[0-9a-f]{16}-[0-9a-f]{16}").all() and hashes.is_unique


def test_images_of_another_size_are_refused(tmp_path):
    run = runs.copied_run(tmp_path, TASK)
    facts = json.loads((run / "labels.json").read_text())
    (run / "labels.json").write_text(json.dumps({**facts, "shape": [16, 8, 1]}))
    task = task_of(runs.tiny(task=TASK), run)
    with pytest.raises(ValueError, match=r"images of shape \[8, 8, 1\], but the model reads \[16, 8, 1\]"):
        task.pixels("validation")


def test_the_attention_of_an_image_is_named_by_its_patches(learned):
    layers = load_run(learned).attention(example="1080")
    shapes = {name: it.weights.shape for name, it in layers.items()}
    assert shapes == {"grid/0": (2, 16, 16), "grid/1": (2, 8, 16), "pool": (2, 4, 8)}
    assert layers["grid/1"].queries[:5] == ["0,0", "0,1", "0,2", "0,3", "1,0"]
    assert layers["grid/1"].keys[4] == "1,0" and layers["pool"].queries[-1] == "query 3"
    with pytest.raises(ValueError, match="give the id of a validation example"):
        load_run(learned).attention("a text")


@pytest.mark.slow
def test_an_image_file_gets_the_label_of_the_same_image_of_the_data(learned, tmp_path):
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    run = load_run(learned)
    number, pixels = digits()[3][0], run.task.pixels("validation")[3]
    images.fromarray(pixels[..., 0]).save(tmp_path / "digit.png")
    written = run.generate([str(tmp_path / "digit.png"), str(number)])
    assert written[0] == written[1] and json.loads(written[0])["label"] == validation(learned)["output"][3]
    with pytest.raises(DataError, match="nothing: neither an image file nor the id of an image of the data"):
        run.generate(["nothing"])
