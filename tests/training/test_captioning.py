"""Image captioning as whole runs: what they leave, the scores of their captions, generation, and pictures per word."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import runs
import torch
import torch.nn.functional as F
from PIL import Image

from attnorm.analysis.captions import Looks, draw_words, joined, looks
from attnorm.analysis.loaded_run import load_run
from attnorm.analysis.scores import example_table
from attnorm.data.sampler import MicroBatch
from attnorm.data.synthetic.scenes import scene
from attnorm.data.synthetic.scenes.descriptions import captions
from attnorm.data.synthetic.scenes.drawing import draw
from attnorm.errors import ConfigError, DataError, UserError
from attnorm.run.run import Run
from attnorm.tasks.captioning.metric import CaptionMetric
from attnorm.tasks.captioning.task import NamedImages
from attnorm.tasks.task import task_of

SIDE, CELLS = 32, 16  # 32 x 32 pixels, halved three times
TASK = "captioning"


@pytest.fixture(scope="module")
def folder():
    return runs.finished_run(TASK)


@pytest.fixture(scope="module")
def run(folder):
    return load_run(folder)


def gold(count=24):
    return [[it.text for it in captions("validation", index)] for index in range(count)]


def test_a_run_leaves_its_record_and_its_scores_are_those_of_the_captions(folder):
    assert json.loads((folder / "images.json").read_text()) == {"side": SIDE, "width": 0, "regions": 0}
    assert runs.summary_of(folder)["primary"] == "CIDEr-D"
    rows = pd.read_parquet(folder / "predictions/validation.parquet")
    assert list(rows["id"]) == [f"validation-{index}" for index in range(24)]
    assert [list(texts) for texts in rows["reference"]] == gold()
    assert rows["input_hash"].str.fullmatch("[0-9a-f]{16}-[0-9a-f]{16}").all()
    written = (folder / "samples/validation.txt").read_text().splitlines()
    assert written == list(rows["output"])
    expected = CaptionMetric(gold())(written)
    found = runs.summary_of(folder)["validation"]["metrics"]
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert rows["CIDEr-D"].mean() == pytest.approx(found["CIDEr-D"])
    assert rows["rougeL"].mean() == pytest.approx(found["rougeL"])
    assert rows["loss_sum"].sum() / rows["n_tokens"].sum() == pytest.approx(found["loss"])


def test_runs_can_be_compared(folder):
    table = example_table(Run(folder), "validation")
    assert table.source == "half" and {"CIDEr-D", "BLEU-4", "rougeL", "loss"} <= set(table.metrics())
    ids = list(table.rows.index)
    written, references = (list(table.rows[column]) for column in ("output", "reference"))
    whole = CaptionMetric([list(texts) for texts in references])(written)["BLEU-4"]
    assert table.overall("BLEU-4", ids) == pytest.approx(whole)
    assert table.values("BLEU-4", ids).shape == (12,)


def test_a_missing_package_is_named_before_anything_is_trained(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"sacrebleu: pip install sacrebleu"):
        run.task.module(run.model, run.tokenizer, run.validation)


def test_the_loss_is_summed_over_the_captions_of_an_image(run):
    """Against the captions one by one, each with its own copy of the image."""
    task, split = task_of(run.resolved, run.folder), run.validation
    module = task.module(run.model, run.tokenizer, split)
    batch = task.collator(split)[MicroBatch([3, 0], 7)]
    assert batch["divisor"] == 7 and batch["owner"].tolist() == [0] * 5 + [1] * 5
    total = 0.0
    for index in (3, 0):
        image = torch.from_numpy(draw(scene("validation", index), SIDE)).permute(2, 0, 1)[None]
        for text in gold()[index]:
            [ids] = run.tokenizer.encode([text])
            target = torch.tensor([[run.tokenizer.bos_id, *ids, run.tokenizer.eos_id]])
            with torch.no_grad():
                logits = run.model.logits(run.model(image, None, target[:, :-1]))[0]
            total += F.cross_entropy(logits, target[0, 1:], reduction="sum").item()
    with torch.no_grad():
        summed, size, plain = module.loss(batch)
    assert plain is None and size == (batch["target"][:, 1:] != run.tokenizer.pad_id).sum()
    assert summed.item() == pytest.approx(total, rel=1e-5)  # float32, of about 100 terms


@pytest.mark.slow
def test_captions_of_files_and_of_ids(run, tmp_path, monkeypatch, capsys):
    paths = []
    for index in (2, 5):
        Image.fromarray(draw(scene("validation", index), SIDE)).save(tmp_path / f"{index}.png")
        paths.append(str(tmp_path / f"{index}.png"))
    written = list(run.predictions["output"][[2, 5]])
    assert run.generate(paths) == run.generate(["validation-2", "validation-5"]) == written
    spaced = tmp_path / "a  file at 3\u202fPM.png"  # spaces of a name are kept
    spaced.write_bytes((tmp_path / "2.png").read_bytes())
    assert run.generate([f" {spaced}"]) == written[:1]
    (tmp_path / "input.txt").write_text(f"{spaced}\n\nvalidation-5\n")
    assert runs.call(monkeypatch, "generate", f"run={run.folder}", f"input={tmp_path}/input.txt") == 0
    assert capsys.readouterr().out.splitlines() == [written[0], "", written[1]]
    with pytest.raises(DataError, match="nothing: neither an image file nor the id of an image"):
        run.generate(["nothing"])
    (tmp_path / "input.txt").write_text("validation-5\nvalidation-2\n\nnothing\n")
    typed = (f"run={run.folder}", f"input={tmp_path}/input.txt", "chunk=2")
    assert runs.call(monkeypatch, "generate", *typed) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [written[1], written[0]]  # what was written before the error is kept
    assert f"input={tmp_path}/input.txt, lines 3 to 4: nothing: neither an image file nor" in printed.err


def test_images_are_looked_up_in_one_split_after_the_other(run):
    opened = []

    def images(split):
        opened.append(split)
        return run.task.images(split)

    named = NamedImages(run.task.shape, ["validation", "test", "train"], images)
    assert named.read(["validation-1", "test-3"])["image"].shape == (2, 3, SIDE, SIDE)
    assert opened == ["validation", "test"]


def test_a_split_that_cannot_be_read_is_named(run):
    """A wrong name and data that have moved are different mistakes."""

    def images(split):
        if split == "test":
            raise DataError("images: no such image: a.png")
        return run.task.images(split)

    named = NamedImages(run.task.shape, ["validation", "test"], images)
    assert named.read(["validation-1"])["image"].shape == (1, 3, SIDE, SIDE)
    with pytest.raises(DataError, match=r"test-3: .*test cannot be read: images: no such image: a\.png"):
        named.check(["test-3"])


def test_attention_to_the_image(run):
    [(label, found)] = run.attention(example="validation-4").items()
    assert label == "decoder/cross" and found.weights.shape == (1, len(found.queries), CELLS)
    assert found.weights.sum(-1).numpy() == pytest.approx(1, abs=1e-5)
    assert found.keys[5] == "1,1" and len(found.keys) == CELLS
    with pytest.raises(ConfigError, match="give the id of a validation example"):
        run.attention("a text")


@pytest.mark.slow
def test_one_picture_per_word(run, tmp_path):
    found = looks(run, "validation-4")
    assert found.caption == run.predictions["output"][4]
    assert found.shares.shape == (len(found.words), 4, 4)
    assert found.shares.sum((1, 2)).numpy() == pytest.approx(1, abs=1e-5)
    assert np.array_equal(found.pixels.numpy(), draw(scene("validation", 4), SIDE))
    draw_words(found, "title").savefig(tmp_path / "words.png")
    assert Image.open(tmp_path / "words.png").size[0] > 400
    with pytest.raises(ConfigError, match="layer=decoder/3: no such layer; allowed: decoder/cross"):
        looks(run, "validation-4", "decoder/3")
    with pytest.raises(ConfigError, match="a run of task=vqa"):
        looks(load_run(runs.finished_run("vqa")), "validation-0")


def test_tokens_form_words():
    assert joined(["▁a", "▁re", "d", "▁ring", "</s>"]) == (["a", "red", "ring", "</s>"], [[0], [1, 2], [3], [4]])
    assert joined(["a", "re", "##d", "[SEP]"]) == (["a", "red", "[SEP]"], [[0], [1, 2], [3]])
    assert isinstance(Looks(torch.zeros(1), ["a", "</s>"], torch.zeros(2, 1, 1)).caption, str)


@pytest.mark.parametrize("content", ["[1]", "{}", '{"side": -1}', '{"size": 3}', "no"])
def test_a_damaged_record_of_the_images_is_refused(tmp_path, content):
    folder = runs.copied_run(tmp_path, TASK)
    (folder / "images.json").write_text(content)
    with pytest.raises(ConfigError, match=r"images\.json: "):
        _ = load_run(folder).task.shape


@pytest.mark.slow
def test_a_transformer_that_looks_at_features(tmp_path):
    """Ready-made features in place of pixels, a Transformer in place of the LSTM, and a prefix normalizer."""
    data = tmp_path / "data"
    (data / "features").mkdir(parents=True)
    lines = []
    for number in range(12):
        value = number % 3
        np.savez(data / "features" / f"{number}.npz", features=np.full((2 + value, 3), value, np.float32))
        colour = ("red", "green", "blue")[value]
        lines += [f"{number}.jpg#{n}\t{colour} {what}" for n, what in enumerate(("dog", "cat"))]
    (data / "captions.txt").write_text("\n".join(lines) + "\n")
    for split, numbers in (("train", range(8)), ("validation", range(8, 12))):
        (data / f"{split}.txt").write_text("".join(f"{number}.jpg\n" for number in numbers))
    keys = [f"data.{split}={data}/captions.txt" for split in ("train", "validation")]
    keys += [f"data.{split}_list={data}/{split}.txt" for split in ("train", "validation")]
    overrides = [it for it in runs.tiny_overrides(TASK) if not it.startswith(("data.", "tokenizer.vocab"))]
    small = ["model=transformer_captioner", "model.n_heads=2", "model.ffn_dim=16", "model.decoder_layers=1"]
    keys += [f"data.features={data}/features", "data.max_boxes=5", "data.batch_tokens=60"]
    cfg = runs.composed(*overrides, *small, "data=caption_files", *keys, "attention.cross=hnas_prefix")
    runs.train(runs.checked(cfg), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.task.shape.width == 3 and run.task.shape.regions == 5
    layers = run.attention(example="9.jpg")
    assert layers["decoder/0/cross"].keys == ["region 0", "region 1"]
    assert run.generate(["10.jpg"]) == [run.predictions.set_index("id")["output"]["10.jpg"]]
    with pytest.raises(ConfigError, match="no pixels"):
        looks(run, "9.jpg")
