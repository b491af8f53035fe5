"""`attnorm attention` and its counterpart in Python: what is read, selected, drawn, measured and printed."""

import itertools
import re
from types import SimpleNamespace

import matplotlib.image
import pandas as pd
import pytest
import runs
import torch
from marks import slow
from torch.testing import assert_close

import attnorm
from attnorm.analysis.attention.heatmaps import LONGEST, axis_label, draw_layer, draw_reading
from attnorm.analysis.attention.reading import LayerAttention, Reading
from attnorm.analysis.paper import COLUMN, PAGE
from attnorm.cli.attention import show
from attnorm.errors import ConfigError

TEXT = "The French president visited 3 cities in Germany on Monday ."


@pytest.fixture(scope="module")
def run():
    return attnorm.load_run(runs.finished_run())


def reading(heads=2, queries=4, keys=5, name="softmax seed 1", token="word"):
    """A made-up reading of two layers, without records."""
    weights = torch.rand(heads, queries, keys, generator=torch.Generator().manual_seed(0)).softmax(-1)
    tokens = [[f"{token}{number}" for number in range(count)] for count in (queries, keys)]
    layers = {label: LayerAttention(weights, *tokens) for label in ("encoder/0", "decoder/0/cross")}
    return Reading(name, "a text", layers, dict.fromkeys(layers), {label: list(range(heads)) for label in layers})


@pytest.mark.slow
@pytest.mark.training
def test_measures_are_those_of_the_recorded_layers_with_one_row_per_head_state_and_key(run):
    found, read = run.measures(TEXT), run.reading(TEXT)
    assert list(zip(found.heads["layer"], found.heads["head"], strict=True)) == [
        (label, head) for label in ("encoder/0", "decoder/0", "decoder/0/cross") for head in (0, 1)
    ]
    for _, row in found.heads.iterrows():
        layer = read.layers[row["layer"]]
        mass = layer.weights[row["head"]].sum(0)
        assert row["column_mass_min"] == pytest.approx(mass.min().item(), rel=1e-5)
        assert row["sink_mass"] == pytest.approx(mass.max().item() / len(layer.queries), rel=1e-5)
        assert row["sink_token"] == layer.keys[mass.argmax()]
    assert list(zip(found.states["layer"], found.states["place"], strict=True)) == [
        (label, place) for label in read.layers for place in ("output", "residual")
    ]
    of_keys = found.sinks[found.sinks["layer"] == "encoder/0"]
    assert of_keys["token"].tolist() == read.layers["encoder/0"].keys
    first = found.sinks[(found.sinks["layer"] == "decoder/0") & (found.sinks["key"] == 0)]["sink_rate"].item()
    heads = found.heads[(found.heads["layer"] == "decoder/0") & (found.heads["sink_token"] == "[bos]")]
    assert first == (heads["sink_mass"] > 0.3).sum() / 2


@pytest.mark.slow
@pytest.mark.training
def test_the_output_of_a_layer_and_of_its_residual_are_those_of_the_model(run):
    layer = run.reading(TEXT).records["encoder/0"]
    module = run.model.encoder.layers[0]
    with torch.no_grad():
        states = run.model.encoder.embeddings(torch.tensor([run.tokenizer.encode([TEXT.lower().replace("3", "#")])[0]]))
        states = torch.cat([states, layer.residual[:, :0]], 1)  # the first layer reads the embeddings
        normed = module.attention_residual.norm(states)
        assert_close(layer.states[:, :-1], normed, rtol=1e-5, atol=1e-5)  # without the end token
        after = layer.output[:, :-1] + states
    assert_close(layer.residual[:, :-1], after, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.training
def test_a_question_about_an_image_is_read_by_its_id_with_words_and_boxes_as_tokens(tmp_path):
    folder = tmp_path / "run"
    runs.tiny_run(folder, "model=mcan_small", "model.fusion=attention", "attention=dnas", task="vqa")
    run = attnorm.load_run(folder)
    name = run.predictions["id"][3]
    found = run.attention(example=name)
    assert set(found) == {"fusion", "encoder/0", "guided/0", "guided/0/cross"}
    words, boxes = found["encoder/0"].keys, found["guided/0"].keys
    spoken = "".join(words[:-1]).replace("▁", " ").strip()
    assert spoken == run.predictions["input"][3] and words[-1] == "[eos]"
    assert found["fusion"].queries == boxes == found["guided/0/cross"].queries
    assert found["guided/0/cross"].keys == words and boxes[0].endswith(" 0")
    assert not set(found["fusion"].keys) & set(boxes)
    for layer in found.values():
        assert layer.weights.shape[1:] == (len(layer.queries), len(layer.keys))
        assert_close(layer.weights.sum(-1), torch.ones(layer.weights.shape[:2]), rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match="example=nobody: no such id in the validation split; there are validation-0"):
        run.attention(example="nobody")


@pytest.mark.training
def test_an_input_is_a_text_or_an_example(run):
    for given in ({}, {"text": TEXT, "example": "0"}):
        with pytest.raises(ConfigError, match="give either a text or the id of an example"):
            run.attention(**given)
    with pytest.raises(ConfigError, match="text= : must not be empty"):
        run.attention(" ")
    with pytest.raises(ConfigError, match="task=gigaword: its models read a text"):
        run.attention(example="0")


def test_layers_and_heads_are_selected_and_unknown_ones_refused():
    kept = reading().select(["encoder/0"], [1])
    assert (list(kept.layers), kept.numbers) == (["encoder/0"], {"encoder/0": [1]})
    assert reading().select().numbers == {"encoder/0": [0, 1], "decoder/0/cross": [0, 1]}
    with pytest.raises(ConfigError) as caught:
        reading().select(["encodr/0"], [7])
    assert [str(it) for it in caught.value.problems] == [
        "layers=encodr/0: no such layer; allowed: encoder/0, decoder/0/cross. Did you mean 'encoder/0'?",
        "heads=7: no such head; allowed: 0 to 1",
    ]


def overlaps(figure, labels):
    """Pairs of neighbouring labels whose boxes overlap."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [label.get_window_extent(canvas.get_renderer()) for label in labels]
    return [pair for pair in itertools.pairwise(boxes) if pair[0].overlaps(pair[1])]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 30, slow(64), 300])
def test_tokens_are_written_at_both_axes_and_never_on_each_other(count):
    figure = draw_layer([reading(heads=1, queries=count, keys=count)], "encoder/0")
    axes = figure.axes[0]
    across, down = ([label.get_text() for label in its] for its in (axes.get_xticklabels(), axes.get_yticklabels()))
    assert across == down and across[0] == "word0"
    assert len(across) == count if count <= 30 else 10 < len(across) < count
    assert not overlaps(figure, axes.get_xticklabels()) and not overlaps(figure, axes.get_yticklabels())
    assert figure.get_size_inches()[0] in (COLUMN, PAGE) and figure.get_size_inches()[1] < 8


def test_the_picture_shows_the_weights_and_tells_negative_ones_apart_by_colour():
    made = reading(heads=3)
    figure = draw_layer([made], "encoder/0")
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(shown) == 3
    for head, values in enumerate(shown):
        assert_close(torch.tensor(values.data), made.layers["encoder/0"].weights[head])
    scale = figure.axes[0].images[0].norm
    assert (scale.vmin, scale.vmax) == (0, pytest.approx(made.layers["encoder/0"].weights.max().item()))
    made.layers["encoder/0"].weights[0, 0, 0] = -0.5
    image = draw_layer([made], "encoder/0").axes[0].images[0]
    assert image.norm.vmin == -image.norm.vmax and image.get_cmap().name == "RdBu_r"


def test_two_readings_are_columns_with_one_scale_and_their_own_tokens():
    first, second = reading(), reading(keys=8, name="dnas seed 1", token="other")
    second.layers["encoder/0"].weights[0, 0, 0] = 0.9
    figure = draw_layer([first, second], "encoder/0")
    panels = [axes for axes in figure.axes if axes.images]
    assert [re.split(",|:", axes.get_title())[0] for axes in panels] == ["softmax seed 1", "dnas seed 1"] * 2
    assert [axes.images[0].norm.vmax for axes in panels] == pytest.approx([0.9] * 4)
    assert [axes.get_xticklabels()[0].get_text() for axes in panels[:2]] == ["word0", "other0"]


def test_files_are_named_by_layer_in_every_format_and_awkward_tokens_can_be_written(tmp_path):
    found = draw_reading([reading()]).save(tmp_path / "new", ("png", "svg"))
    names = ("overview", "encoder_0", "decoder_0_cross")
    assert [path.name for path in found] == [f"{name}.{suffix}" for name in names for suffix in ("png", "svg")]
    assert matplotlib.image.imread(found[0]).std() > 0.01 and found[1].read_text().startswith("<?xml")
    tokens = [axis_label(token) for token in ("▁the", " ", "\n", "", "a$b$", "x" * 40)]
    assert tokens == ["the", "␣", "↵", "·", r"a\$b\$", "x" * (LONGEST - 1) + "…"]


@pytest.mark.slow
@pytest.mark.training
def test_the_command_draws_writes_and_prints(monkeypatch, tmp_path, capsys):
    folder = runs.copied_run(tmp_path)
    typed = 'text=Police arrested "two" men, in {London} for $5, it\'s said: a=b [c].'
    assert runs.call(monkeypatch, "attention", f"run={folder}", typed, "layers=encoder/0", "heads=1") == 0
    target = folder / "figures/attention"
    assert {path.name for path in target.iterdir()} == {
        *("overview.png", "encoder_0.png", "heads.csv", "states.csv", "sinks.csv")
    }
    table = pd.read_csv(target / "heads.csv")
    assert table[["run", "layer", "head"]].to_numpy().tolist() == [["hnas seed 1", "encoder/0", 1]]
    expected = attnorm.load_run(folder).measures(typed.removeprefix("text=")).heads
    assert table["entropy"].item() == pytest.approx(expected["entropy"][1])
    printed = capsys.readouterr().out
    assert "hnas seed 1: attention weights" in printed and f"{expected['entropy'][1]:.3g}" in printed


@pytest.mark.parametrize("heads", [6, 7])
def test_the_means_over_the_heads_of_a_layer_are_printed_if_they_are_many(capsys, heads):
    rows = [(layer, head, 1.0 + head, "word") for layer in ("encoder/0", "encoder/1") for head in range(heads)]
    table = pd.DataFrame(rows, columns=["layer", "head", "entropy", "sink_token"])
    show(SimpleNamespace(run="softmax seed 1", heads=table, states=pd.DataFrame()))
    printed = capsys.readouterr().out
    found = re.findall(r"(encoder/\d) .*?(\d\.\d\d)", printed)
    if heads == 7:
        assert "attention weights, means over heads" in printed
        assert found == [("encoder/0", "4.00"), ("encoder/1", "4.00")]
    else:
        assert "means" not in printed and "word" in printed
        assert found == [(layer, f"{entropy:.2f}") for layer, _, entropy, _ in rows]


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("way", ["comma", slow("against")])
def test_two_runs_are_drawn_next_to_each_other(monkeypatch, tmp_path, way):
    first, second = runs.finished_run(), runs.copied_run(tmp_path)
    named = [f"run={first},{second}"] if way == "comma" else [f"run={first}", f"against={second}"]
    layer = "layers=decoder/0/cross"
    assert runs.call(monkeypatch, "attention", *named, "text=a man", layer, f"out={tmp_path}/out") == 0
    table = pd.read_csv(tmp_path / "out/heads.csv")
    assert table["run"].unique().tolist() == [f"hnas seed 1 ({first})", f"hnas seed 1 ({second})"]
    assert (tmp_path / "out/decoder_0_cross.png").is_file()


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize(
    ("task", "several", "typed", "files"),
    [
        ("vqa", 1, ("example=validation-2", "formats=[png,svg]"), {"fusion.png", "fusion.svg", "boxes_2.png"}),
        ("captioning", 1, ("example=validation-2",), {"decoder_cross.png", "words_validation-2.png"}),
        ("captioning", 2, ("example=validation-2", "formats=svg"), {"run_2/words_validation-2.svg"}),
        ("translation", 1, ("text=mira prizom",), {"decoder_0_cross.png", "alignment_0.png"}),
    ],
)
def test_the_pictures_of_a_task_are_drawn(monkeypatch, tmp_path, task, several, typed, files):
    named = f"run={','.join([str(runs.finished_run(task))] * several)}"
    assert runs.call(monkeypatch, "attention", named, f"out={tmp_path}", *typed) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} >= files


@pytest.mark.training
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("run={run}",), "text: either text or example must be given, as in text="),
        (("run={run}", "text=a", "example=0"), "text: either text or example must be given, not both"),
        (("run={run}", "text="), "text=: must not be empty"),
        (("text=a",), "run: must be given, as in run=<value>"),
        (("run=nowhere", "text=a"), "run=nowhere: no such folder"),
        (("run={run},{run},{run}", "text=a"), "at most two runs can be compared"),
        (("run={run}", "text=a", "lyers=0"), "lyers: cannot be set here"),
        (("run={run}", "text=a", "layers=encoder/1"), "layers=encoder/1: no such layer; allowed: encoder/0, decoder/0"),
        (("run={run}", "text=a", "heads=[0,2]"), "heads=2: no such head; allowed: 0 to 1"),
        (("run={run}", "text=a", "heads=first"), "heads=first: allowed: whole numbers from 0"),
        (("run={run}", "text=a", "formats=png,gif"), "formats=gif: allowed: png, svg, pdf"),
        (("run={run}", "text=a", "ckpt=worst"), "ckpt=worst: allowed: best, last"),
        (("run={run}", "example=0"), "example: task=gigaword: its models read a text"),
    ],
)
def test_a_wrong_command_is_one_message(monkeypatch, capsys, tmp_path, typed, message):
    monkeypatch.chdir(tmp_path)
    assert runs.call(monkeypatch, "attention", *(it.format(run=runs.finished_run()) for it in typed)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
