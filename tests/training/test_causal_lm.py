"""Language modelling as whole runs: scores, measures, evaluation, generation, comparisons, refused settings."""

import itertools
import json
import math

import pandas
import pyarrow as pa
import pytest
import runs
from browser import open_browser
from gpt_builders import write_bpe
from pyarrow import parquet

from attnorm.analysis import compare
from attnorm.analysis.loaded_run import load_run
from attnorm.data.synthetic.chronicles import chronicle
from attnorm.run.csv_files import read_csv
from attnorm.training.train import train

TASK = "causal_lm"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep with two runs that have learned something, and its runs by normalizer."""
    folder = tmp_path_factory.mktemp("swept")
    found = {}
    for arm in ("softmax", "hnas_prefix"):
        found[arm] = folder / arm
        typed = ("callbacks=measures", "callbacks.attention_measures.every_n_steps=20", "task.max_steps=40")
        runs.train(runs.tiny(f"attention={arm}", *typed, task=TASK), found[arm])
    return found


@pytest.mark.slow
def test_a_run_and_a_report_have_its_scores_beside_those_of_the_baselines(swept, monkeypatch, tmp_path):
    summary = runs.summary_of(swept["softmax"])
    metrics = {"loss", "perplexity", "bits_per_byte", "loss_1x", "loss_2x", "loss_4x", "loss_8x"}
    assert set(summary["validation"]["metrics"]) == metrics
    assert summary["validation"]["metrics"]["perplexity"] < summary["validation"]["baselines"]["unigram"]["perplexity"]
    assert (summary["primary"], summary["monitor"]) == ("perplexity", "val/loss")
    assert (swept["softmax"] / "bigrams.npz").is_file()
    assert runs.call(monkeypatch, "report", *map(str, swept.values()), f"out={tmp_path}/report.html") == 0
    text = (tmp_path / "report.html").read_text()
    assert "bits per byte \N{DOWNWARDS ARROW}" in text and "bigram (simple baseline, whole split)" in text
    bands = ("[0, L)", "[L, 2L)", "[2L, 4L)", "[4L, 8L)")
    places = [text.index(f"loss at {band} \N{DOWNWARDS ARROW}") for band in bands]
    assert places == sorted(places)
    with open_browser() as browser:  # which is not everywhere
        browser.open(tmp_path / "report.html")
        charts = "[...document.querySelectorAll('figure')]"
        drawn = browser.run(f"return {charts}.map((it) => !!it.querySelector('.chart svg'))")
        assert browser.errors() == [] and len(drawn) > 5 and all(drawn)


@pytest.mark.slow
def test_the_sinks_and_activations_of_every_layer_are_measured_over_training(swept):
    heads, states = (read_csv(swept["softmax"] / f"{name}_measures.csv") for name in ("head", "state"))
    assert {(row["step"], row["head"]) for row in heads} == {*itertools.product(("0", "20", "40"), "01")}
    assert {row["layer"] for row in heads} == {"decoder/0"}
    for row in heads:
        assert 0 < float(row["first_mass"]) <= float(row["sink_mass"]) <= 1 and 0 <= float(row["entropy"]) <= 1
    assert {row["place"] for row in states if float(row["largest"]) > 0} == {"output", "residual"}


@pytest.mark.slow
def test_runs_are_compared_by_the_sums_over_documents(swept):
    for metric in (None, "bits_per_byte", "loss_8x"):
        found = compare(str(swept["softmax"]), str(swept["hnas_prefix"]), metric=metric)
        assert (found.metric, found.source, found.examples) == (metric or "perplexity", "half", 2)
        for scores in found.scores:
            table = pandas.read_parquet(swept[scores.label] / "predictions/validation.parquet")
            rows = table[~table["selecting"]].sum(numeric_only=True)
            expected = {
                "perplexity": math.exp(rows["loss_sum"] / rows["n_tokens"]),
                "bits_per_byte": rows["loss_sum"] / math.log(2) / rows["bytes"],
                "loss_8x": rows["loss_sum_8x"] / rows["n_tokens_8x"],
            }
            assert scores.values == {1: pytest.approx(expected[found.metric])}
        assert found.is_primary == (metric is None)
    assert compare(str(swept["softmax"]), str(swept["hnas_prefix"])).simple.keys() == {"bigram", "unigram"}


@pytest.mark.slow
def test_eval_reads_the_test_split_and_generate_continues_texts(swept, monkeypatch, tmp_path, capsys):
    run = swept["hnas_prefix"]
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test") == 0
    record = json.loads((run / "eval_test.json").read_text())
    assert record["size"] == 3 and set(record["baselines"]) == {"bigram", "unigram"}
    table = pandas.read_parquet(run / "predictions/eval_test.parquet")
    assert list(table["id"]) == ["0", "1", "2"] and (table["n_tokens_8x"] % 64 == 0).all()
    (tmp_path / "prompts.txt").write_text("Day 1. It rained, and\n\nThe chronicle of\n")
    capsys.readouterr()
    sampled = ("decoding.temperature=0.5", "decoding.top_p=0.9", "decoding.max_length=8", "decoding.seed=3")
    assert runs.call(monkeypatch, "generate", f"run={run}", f"input={tmp_path / 'prompts.txt'}", *sampled) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0] and not lines[1] and lines[2]


@pytest.mark.slow
def test_attention_is_named_by_the_tokens_of_a_text(swept):
    layers = load_run(swept["softmax"]).attention("Day 1. It rained.")
    [layer] = layers.values()
    assert layer.keys == layer.queries and layer.keys[0] == "[bos]"
    assert "".join(layer.keys[1:]).replace("▁", " ").strip() == "Day 1. It rained."


@pytest.mark.slow
def test_documents_of_the_hub_are_modelled_each_by_itself(tmp_path):
    (tmp_path / "hub").mkdir()
    for split, count in (("train", 5), ("validation", 3)):
        texts = [chronicle(split, number, length=150) for number in range(count)]
        parquet.write_table(pa.table({"body": texts}), tmp_path / f"hub/{split}-00000-of-00001.parquet")
    hub = ("data=text_hub", f"data.path={tmp_path}/hub", "data.column=body", "tokenizer.vocab_size=150")
    train(runs.tiny_language(tmp_path, *hub), tmp_path / "run")
    table = pandas.read_parquet(tmp_path / "run/predictions/validation.parquet")
    assert list(table["group"]) == list(table["id"]) == ["0", "1", "2"]
    assert list(table["bytes"]) == [len(" ".join(text.split()).encode()) for text in texts]


@pytest.mark.slow
def test_the_tokens_of_gpt_2_are_its_bytes_and_merges(tmp_path):
    """With one merge, a text has as many tokens as bytes, with a space in front of each word, less one for each pair
    that is merged, and an end."""
    size = write_bpe(tmp_path, merges=[("t", "h")])
    typed = ("data=chronicles", "data.train_size=4", "data.valid_size=3", "data.words=60")
    cfg = runs.tiny_language(tmp_path, *typed, "tokenizer=gpt2", f"tokenizer.file={tmp_path}")
    train(cfg, tmp_path / "run")
    texts = [" ".join(chronicle("validation", number, length=60).split()) for number in range(3)]
    table = pandas.read_parquet(tmp_path / "run/predictions/validation.parquet")
    assert list(table["n_tokens"]) == [len(f" {text}".encode()) - text.count("th") + 1 for text in texts]
    assert len(runs.parameters(tmp_path / "run")["model.embeddings.tokens.weight"]) == size
    assert all(text.startswith(beginning) for text, beginning in zip(texts, table["reference"], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_run_in_bfloat16_starts_with_the_loss_of_float32(tmp_path, precision):
    for chosen in ("32-true", precision):
        runs.tiny_run(tmp_path / chosen, "attention=sink", f"trainer.precision={chosen}", task=TASK)
    found, wanted = (runs.logged(tmp_path / chosen, "train/loss") for chosen in (precision, "32-true"))
    # 16 roundings of the layer and one of the scores to 8 bits, which are independent
    assert abs(found[1] - wanted[1]) <= math.sqrt(17) * 2.0**-8 * wanted[1]
    assert list(found) == list(wanted) and all(map(math.isfinite, found.values()))
