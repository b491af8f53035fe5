"""Questions on images: texts to rows, rows to batches with the views of their images."""

import json

import numpy as np
import pytest
import torch
from builders import Words, tokenizer_settings
from datasets import Dataset

from attnorm.data import prepare
from attnorm.data.image_features import MappedFeatures, VisualSource, write_features
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import VISUAL
from attnorm.tasks.vqa.answers import AnswerList, accuracy
from attnorm.tasks.vqa.module import VqaCollator, VqaFeaturizer

PAD, EOS = 0, 3
ANSWERS = AnswerList(["yes", "no", "2", "two", "red"])
TEN = ["two"] * 2 + ["2"] * 1 + ["no"] + ["x"] * 6
TEXTS = {
    "id": ["a", "b", "c", "d"],
    "image": ["i1", "i2", "i1", "i3"],
    "question": ["is it red ?", "how many things are there now ?", "x", ""],
    "answers": [json.dumps(["yes"]), json.dumps(TEN), json.dumps(["blue"]), "[]"],
    "kind": ["yes/no", "number", "other", ""],
}


def table_of(layout, texts=TEXTS):
    import pyarrow as pa

    ids, counts = layout.encode(texts, 0, Words())
    schema = pa.schema(list(layout.columns().items()))
    return Dataset(pa.Table.from_pydict(ids, schema=schema)), counts


def test_a_question_ends_with_the_end_token_and_is_cut():
    table, counts = table_of(VqaFeaturizer(5, ANSWERS))
    assert table["ids"][:] == [[12, 12, 13, 11, EOS], [13, 14, 16, 13, EOS], [11, EOS], [EOS]]
    assert table["answers"][:] == [[0], [1, 2, 3], [], []]
    assert table["scores"][1] == pytest.approx([0.3, 0.9, 0.9]) and table["scores"][0] == [1.0]
    assert counts == {"truncated": 1, "answered": 3, "known": 2, "best": 19}
    layout = VqaFeaturizer(5, ANSWERS)
    assert layout.lengths(table).tolist() == [[5], [5], [2], [1]] and layout.lengths(table).dtype == np.int32
    assert layout.weights(table).tolist() == [1] * 4 and layout.schema is VISUAL


def test_the_description_counts_what_the_list_can_answer():
    layout = VqaFeaturizer(5, ANSWERS)
    counts = {"kept": 4000, "empty": 1, "truncated": 2, "answered": 3000, "known": 2000, "best": 19000}
    assert layout.describe(counts) == (
        "4,000 questions (1 empty skipped, 2 truncated; 66.7% have an answer in the list of 5, best 63.3%)"
    )
    counts |= {"answered": 0, "known": 0, "best": 0}
    assert layout.describe(counts) == "4,000 questions (1 empty skipped, 2 truncated, without answers)"


def test_what_decides_the_ids_is_in_the_settings():
    other = AnswerList(["yes", "no", "2", "two", "blue"])
    layouts = [VqaFeaturizer(*given) for given in ((5, ANSWERS), (6, ANSWERS), (5, other))]
    assert len({json.dumps(layout.settings()) for layout in layouts}) == 3


def views_of(folder, images=("i1", "i2", "i3"), geometry=True):
    boxes = [
        [(np.full((n + 1, 3), n + 1.0), np.full((n + 1, 4), 0.25)), (np.full((1, 2), 10.0 + n), np.zeros((1, 4)))]
        for n in range(len(images))
    ]
    write_features(folder, ["a", "b"], [3, 2], [3, 2], images, boxes)
    return MappedFeatures(folder)


def test_a_part_becomes_tensors(tmp_path):
    table, _ = table_of(VqaFeaturizer(8, ANSWERS))
    batches = VqaCollator(table, Dataset.from_dict(TEXTS), views_of(tmp_path), PAD, len(ANSWERS))
    batch = batches[MicroBatch([2, 1, 3], 17)]
    parts = [f"{part}{number}" for number in range(2) for part in ("view", "present", "geometry")]
    assert list(batch) == ["ids", "targets", *parts, "rows", "divisor"]
    assert batch["ids"].tolist()[0] == [11, EOS, *[PAD] * 6] and batch["ids"].tolist()[2] == [EOS, *[PAD] * 7]
    assert batch["ids"].dtype == torch.int64 and batch["targets"].dtype == torch.float32
    torch.testing.assert_close(
        batch["targets"], torch.tensor([[0.0] * 5, [accuracy(text, TEN) for text in ANSWERS.texts], [0.0] * 5])
    )
    assert batch["view0"][:, 0, 0].tolist() == [1.0, 2.0, 3.0] and batch["view1"][:, 0, 0].tolist() == [10, 11, 12]
    assert batch["present0"].sum(1).tolist() == [1, 2, 3] and batch["present1"].sum(1).tolist() == [1, 1, 1]
    assert batch["geometry0"][1, 1].tolist() == [0.25] * 4 and batch["geometry0"][1, 2].tolist() == [0.0] * 4
    assert batch["rows"].tolist() == [2, 1, 3] and batch["divisor"].item() == 17
    assert batches[MicroBatch([3, 2, 1], 3)]["view0"][:, 0, 0].tolist() == [3.0, 1.0, 2.0]


def test_a_batch_has_keys_for_the_parts_of_views_that_there_are():
    class Bare:
        def check(self, images):
            assert list(images) == ["i1", "i2", "i3"]  # each once

        def read(self, images):
            return [(torch.zeros(len(images), 2, 3), torch.ones(len(images), 2, dtype=torch.bool), None)]

    table, _ = table_of(VqaFeaturizer(8, ANSWERS))
    for views, parts in ((None, []), (Bare(), ["view0", "present0"])):
        batch = VqaCollator(table, Dataset.from_dict(TEXTS), views, PAD, len(ANSWERS))[MicroBatch([0], 1)]
        assert list(batch) == ["ids", "targets", *parts, "rows", "divisor"]


def test_images_without_features_are_refused_before_training(tmp_path):
    table, _ = table_of(VqaFeaturizer(8, ANSWERS))
    with pytest.raises(ValueError, match="no features of 1 image: i3"):
        VqaCollator(table, Dataset.from_dict(TEXTS), views_of(tmp_path, ["i1", "i2"]), PAD, len(ANSWERS))


class Own(VisualSource):
    splits = ("train", "validation")

    def check(self, splits=("train", "validation")):
        return []

    def fingerprint(self, split):
        return split

    def rows(self, split):
        yield from zip(*TEXTS.values(), strict=True)

    def views(self, split, cache_dir):
        return None


def test_prepare_takes_a_visual_source_and_this_layout(tmp_path):
    settings = tokenizer_settings("wordpiece", file=None, vocab_size=60, sample=None, lowercase=True)
    layout = VqaFeaturizer(60, ANSWERS)
    splits = prepare(Own(), settings, layout, max_rows={}, cache_dir=tmp_path)
    train = splits["train"]
    assert len(train) == 3 and train.texts["image"][:] == ["i1", "i2", "i1"]  # without a question there is no row
    assert train.counts["empty"] == 1 and ", 0 truncated" in layout.describe(train.counts)
    batch = VqaCollator(train.rows, train.texts, None, train.tokenizer.pad_id, len(ANSWERS))[MicroBatch([1], 1)]
    assert batch["targets"][0, 2].item() == pytest.approx(0.9) and batch["ids"][0, -1] == train.tokenizer.eos_id
