"""Runs in Python: what `attnorm.load_run` reads, and that the model it opens is the one of the run."""

import base64
import re

import pytest
import runs
import torch

import attnorm
from attnorm.attention.multihead import observe
from attnorm.errors import ConfigError, RunError, UserError

ARTICLE = "The French president visited 3 cities in Germany on Monday ."
pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def run():
    return attnorm.load_run(runs.finished_run())


def test_the_records_of_a_run_are_read_and_only_splits_that_are_held_out_are_evaluated(run):
    assert run.config["task"]["name"] == "gigaword" and run.summary["state"] == "finished"
    assert {"step", "train/loss", "val/loss"} <= set(run.metrics.columns)
    assert run.metrics["step"].max() == run.summary["steps"]
    assert list(run.table("hybrid_weights.csv").columns) == ["step", "layer", "head", "value", "lr_factor"]
    assert len(run.predictions) == run.summary["validation"]["size"]
    mean = run.predictions["rouge1"].mean()
    assert mean == pytest.approx(run.summary["validation"]["metrics"]["rouge1"], rel=1e-12)
    assert run.evaluate().metrics == run.scores
    with pytest.raises(ConfigError, match="split=train: allowed: validation, test"):
        run.evaluate("train")


def test_the_model_writes_what_the_command_writes(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "articles.txt").write_text(f"{ARTICLE}\n")
    assert runs.call(monkeypatch, "generate", f"run={run.folder}", f"input={tmp_path}/articles.txt") == 0
    assert run.generate([ARTICLE]) == capsys.readouterr().out.splitlines()


def test_attention_is_that_of_the_model_by_layer_and_head_with_its_tokens(run):
    found = run.attention(ARTICLE)
    assert list(found) == ["encoder/0", "decoder/0", "decoder/0/cross"]
    read, wrote = found["encoder/0"].keys, found["decoder/0"].queries
    assert "".join(read[:-1]).replace("▁", " ").strip() == ARTICLE.lower().replace("3", "#") and read[-1] == "[eos]"
    assert wrote[0] == "[bos]" and found["decoder/0/cross"].keys == read and found["decoder/0/cross"].queries == wrote
    for layer in found.values():
        assert layer.weights.shape == (2, len(layer.queries), len(layer.keys))
        sums = layer.weights.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=len(layer.keys) * 2**-23)
    assert found["decoder/0"].weights.triu(1).abs().max() == 0  # no weight on the future
    ids = run.tokenizer.encode([ARTICLE.lower().replace("3", "#")])[0]
    seen = []
    with torch.no_grad(), observe(run.model, lambda name, weights, _: seen.append(weights)):
        run.model.encode(torch.tensor([[*ids, run.tokenizer.eos_id]]))
    torch.testing.assert_close(found["encoder/0"].weights, seen[0][0], rtol=0, atol=0)


@pytest.mark.slow
def test_an_encoder_reads_one_text_and_what_a_task_cannot_do_is_said():
    for task in ("classify", "mlm"):
        run = attnorm.load_run(runs.finished_run(task))
        found = run.attention("the cat of paris")
        assert list(found) == ["encoder/0"]
        assert found["encoder/0"].keys[0] == "[CLS]" and found["encoder/0"].keys[-1] == "[SEP]"
    with pytest.raises(UserError, match="task=mlm: its models do not generate text"):
        run.generate(["what is this ?"])
    with pytest.raises(UserError, match="task=vqa: its models need more input than a text"):
        attnorm.load_run(runs.finished_run("vqa")).attention("what is this ?")


def test_a_folder_that_is_no_run_or_names_foreign_code_is_refused(tmp_path):
    with pytest.raises(AttributeError, match="no attribute 'lode_run'"):
        _ = attnorm.lode_run
    with pytest.raises(RunError, match="no such folder"):
        attnorm.load_run(tmp_path / "nowhere")
    folder = runs.copied_run(tmp_path)
    runs.edit(folder, "model._target_", "elsewhere.Model")
    with pytest.raises(ConfigError, match="names code outside attnorm"):
        attnorm.load_run(folder)
    (folder / "predictions" / "validation.parquet").unlink()
    with pytest.raises(RunError, match=r"validation\.parquet: missing; the task records no examples"):
        _ = attnorm.load_run(folder, trust_code=True).predictions
    (folder / "summary.json").unlink()
    with pytest.raises(RunError, match=r"validation\.parquet: missing; it is written when training ends"):
        _ = attnorm.load_run(folder, trust_code=True).predictions


@pytest.mark.slow
def test_a_notebook_shows_figures_and_files_are_written_on_request(run, tmp_path):
    """As IPython asks an object: a PNG of a figure, and HTML of several; nothing is written into the run folder."""
    before = runs.files_of(run.folder)
    curves, maps = run.draw_curves(), run.draw_attention(ARTICLE, layers=["decoder/0/cross"], heads=[1])
    assert list(curves) == ["hybrid_weights", "attention"] and list(maps) == ["overview", "decoder_0_cross"]
    assert runs.files_of(run.folder) == before
    for figures in (curves, maps):
        shown = figures._repr_html_()
        pictures = [base64.b64decode(it) for it in re.findall(r'src="data:image/png;base64,([^"]+)"', shown)]
        assert len(pictures) == 2 and len(set(pictures)) == 2 and shown.count("<img") == 2
        for name, figure, picture in zip(figures, figures.values(), pictures, strict=True):
            assert f">{name}<" in shown and picture.startswith(b"\x89PNG\r\n") and figure._repr_png_()[:4] == b"\x89PNG"
    files = maps.save(tmp_path / "new", ["svg", "png"])
    assert [it.name for it in files] == [f"{name}.{kind}" for name in maps for kind in ("svg", "png")]
    assert files[0].read_text().startswith("<?xml") and files[1].read_bytes().startswith(b"\x89PNG")
