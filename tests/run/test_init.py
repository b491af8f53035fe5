"""model.init: a BERT's weights, or an earlier run's, in every task; what does not fit is said before data is read."""

import json
import shutil

import huggingface_hub
import pytest
import runs
import torch
from gpt_builders import write_bpe
from marks import slow
from safetensors.torch import load_file, save_file
from tolerance import rounding
from torch.testing import assert_close

from attnorm.choices import choices
from attnorm.cli.train import resume_in
from attnorm.data import preprocess as corpus
from attnorm.data.sampler import MicroBatch
from attnorm.errors import ConfigError
from attnorm.models.config import GPTConfig
from attnorm.models.gpt import GPT
from attnorm.models.load_weights import read_weights
from attnorm.run import warm_start as init
from attnorm.run.csv_files import read_csv
from attnorm.tasks.task import Task, task_of
from attnorm.training.train import train

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", ",", "the", "a"]
PIECES += [*(chr(c) for c in range(98, 123)), *(f"##{chr(c)}" for c in range(97, 123)), "of", "is", "likes", "##ed"]
SIZES = {"vocab_size": len(PIECES), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 40, "max_position_embeddings": 100}  # none of them the tiny ones
SIZES |= {"layer_norm_eps": 1e-3, "hidden_act": "relu"}
WORDPIECE = "attnorm.data.tokenizers.wordpiece.WordPiece"
WIDE = ("model.d_model=24", "model.n_heads=3", "model.encoder_layers=2")
STILL = ("task.max_steps=1", "optimizer.lr=1.0e-12", "optimizer.hybrid_lr_factor=1", "model.dropout=0")
SOME = ("mlm", slow("squad"), slow("classify"), "gigaword")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT that transformers wrote, with noise on every parameter, and its vocab.txt."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("hub") / "bert"
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return folder


@pytest.fixture
def copy(bert, tmp_path):
    """A BERT to be spoilt."""
    return shutil.copytree(bert, tmp_path / "bert")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A finished run of masked language modelling, of which only the best checkpoint is left."""
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    runs.tiny_run(folder, *WIDE, task="mlm")
    (folder / "checkpoints/last.ckpt").unlink()
    return folder


def refused(*overrides, task="mlm"):
    with pytest.raises(ConfigError) as caught:
        runs.tiny(*overrides, task=task)
    return caught.value.problems


def config_of(run):
    return runs.record_of(run)["settings"]


def val_losses(run):
    return [float(row["val/loss"]) for row in read_csv(run / "metrics.csv") if row.get("val/loss")]


# what is loaded


@pytest.mark.slow
@pytest.mark.parametrize("task", SOME)
def test_shape_and_tokenizer_are_those_of_the_weights_and_are_recorded(tmp_path, bert, capsys, task):
    run = tmp_path / "run"
    summary = runs.tiny_run(run, f"model.init={bert}", *STILL, task=task)
    assert summary["state"] == "finished" and summary["vocabulary"] == len(PIECES)
    recorded = config_of(run)
    model = recorded["model"]
    expected = {"d_model": 24, "n_heads": 3, "ffn_dim": 40, "encoder_layers": 2, "norm_first": False, "residual": True}
    expected |= {"positions": "learned", "embedding_norm": True, "norm_eps": 1e-3, "type_vocab_size": 2}
    expected |= {"activation": "relu", "tie_embeddings": True}
    expected |= {"init": str(bert), "max_source": 64, "dropout": 0}  # what stays as it was typed
    expected |= {"decoder_layers": 2, "max_target": 32} if task == "gigaword" else {}
    assert {name: model[name] for name in expected} == expected
    assert recorded["tokenizer"] == {"_target_": WORDPIECE, "file": str(bert), "lowercase": None}
    shown = " ".join(capsys.readouterr().out.split())
    assert f"tensors from {bert}" in shown
    if task == "classify":
        assert "start anew (2): classifier.weight, classifier.bias" in shown
        assert "there, not used (" in shown and "cls.seq_relationship.weight" in shown


@pytest.mark.slow
@pytest.mark.numerical
def test_the_first_validation_is_that_of_the_weights_in_transformers(tmp_path, bert):
    """mlm: hardly trained, the validation loss is the one that BertForPreTraining gives at the same hidden tokens."""
    transformers = pytest.importorskip("transformers")
    typed = (f"model.init={bert}", *STILL, "task.packed=false")
    summary = runs.tiny_run(tmp_path, *typed, task="mlm")
    recipe = task_of(runs.tiny(*typed, task="mlm"))
    split = recipe.splits()["validation"]
    theirs = transformers.BertForPreTraining.from_pretrained(bert).eval()
    loss = hidden = 0.0
    with torch.no_grad():
        for row in range(len(split)):
            batch = recipe.collator(split)[MicroBatch([row], 1)]
            scores = theirs(batch["ids"]).prediction_logits[batch["masked_positions"]]
            loss += torch.nn.functional.cross_entropy(scores, batch["labels"], reduction="sum").item()
            hidden += len(scores)
    assert summary["validation"]["metrics"]["loss"] == pytest.approx(loss / hidden, rel=1e-4)


@pytest.mark.slow
def test_only_the_weights_vocabulary_tokenizes_the_data(monkeypatch, bert, tmp_path):
    asked = []
    runs.before(monkeypatch, corpus, "_split", lambda name, rows, tokenizer, *_: asked.append(tokenizer.vocab_size))
    runs.before(monkeypatch, corpus, "_tokenizer", lambda settings, *_: asked.append(settings["file"]))
    runs.tiny_run(tmp_path, f"model.init={bert}", *STILL, task="squad")
    assert asked == [str(bert), len(PIECES), len(PIECES)]


# from a run of ours


@pytest.mark.parametrize("task", SOME)
def test_an_earlier_run_gives_its_shape_its_tokenizer_and_its_best_weights(tmp_path, pretrained, task):
    run = tmp_path / "run"
    before = runs.files_of(pretrained)
    summary = runs.tiny_run(run, f"model.init={pretrained}", *STILL, task=task)
    assert summary["vocabulary"] == 300
    assert (run / "tokenizer.json").read_bytes() == (pretrained / "tokenizer.json").read_bytes()
    assert config_of(run)["model"]["d_model"] == 24
    assert config_of(run)["tokenizer"]["file"] == str(pretrained)
    theirs, ours = runs.parameters(pretrained, "best"), runs.parameters(run)
    names = [name for name in theirs if name.startswith("model.encoder.")]
    assert len(names) > 30
    for name in names:
        assert_close(ours[name], theirs[name], rtol=0, atol=1e-9)
    assert runs.files_of(pretrained) == before


@pytest.mark.slow
@pytest.mark.numerical
@pytest.mark.parametrize(
    ("before", "task"), [*((it, it) for it in ("mlm", "gigaword", "translation")), ("translation", "gigaword")]
)
def test_a_model_goes_on_where_it_was(tmp_path, before, task):
    """With the tokenizer of the run, every parameter, and the same validation loss in the same task."""
    start = runs.finished_run(before)
    runs.tiny_run(tmp_path / "again", "attention=hnas", f"model.init={start}", *STILL, task=task)
    file, cls = ("tokenizer.json", WORDPIECE) if task == "mlm" else ("sentencepiece.model", runs.SENTENCEPIECE)
    assert (tmp_path / "again" / file).read_bytes() == (start / file).read_bytes()
    assert {"_target_": cls, "file": str(start)}.items() <= config_of(tmp_path / "again")["tokenizer"].items()
    assert_close(runs.parameters(tmp_path / "again"), runs.parameters(start, "best"), rtol=0, atol=1e-9)
    if task == before:
        close = rounding(torch.float32, depth=3, size=300)  # a layer of each stack, and the scores of 300 pieces
        assert val_losses(tmp_path / "again") == [pytest.approx(min(val_losses(start)), rel=close)]
        first, second = (runs.summary_of(run)["validation"]["metrics"] for run in (start, tmp_path / "again"))
        assert second["loss"] == pytest.approx(first["loss"], rel=close)


@pytest.mark.slow
def test_evaluating_and_going_on_need_the_weights_no_more(monkeypatch, tmp_path, copy):
    typed = (f"model.init={copy}", "task.max_steps=6")
    runs.tiny_run(tmp_path / "straight", *typed, task="mlm")
    runs.stopped(monkeypatch, tmp_path / "first", 3, *typed, task="mlm")
    shutil.rmtree(copy)
    assert runs.call(monkeypatch, "eval", f"run={tmp_path}/straight") == 0
    record = json.loads((tmp_path / "straight/eval_validation.json").read_text())
    assert record["metrics"] == runs.summary_of(tmp_path / "straight")["validation"]["metrics"]
    runs.tiny_run(tmp_path / "second", *typed, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt", task="mlm")
    assert runs.different_ends(tmp_path / "straight", tmp_path / "second") == []
    assert config_of(tmp_path / "second")["model"] == config_of(tmp_path / "straight")["model"]
    assert runs.call(monkeypatch, "eval", f"run={tmp_path}/second") == 0


@pytest.mark.slow
def test_a_resumed_headline_run_needs_the_weights_no_more(monkeypatch, tmp_path, copy):
    typed = (f"model.init={copy}", "task.max_steps=4")
    runs.stopped(monkeypatch, tmp_path / "first", 2, *typed)
    shutil.rmtree(copy)
    go_on = f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="planted"):
        patch.setattr(Task, "splits", lambda *_: (_ for _ in ()).throw(RuntimeError("planted")))
        runs.tiny_run(tmp_path / "second", *typed, go_on, task="gigaword")
    shutil.rmtree(tmp_path / "first")
    assert resume_in(tmp_path / "second", [f"resume={tmp_path}/second"]) == 0
    assert runs.summary_of(tmp_path / "second")["state"] == "finished"


# refusing


@pytest.fixture
def hub(monkeypatch):
    """What the hub was asked for; it gives nothing."""
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options))
        raise OSError("the hub\nis not there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize(
    ("name", "asked", "why"),
    [
        *((it, False, "not the name of a model on the hub") for it in ("./nowhere", "/no/where", "a/b/c", "~bert")),
        *((it, True, "the hub does not give it: the hub") for it in ("nowhere", "owner/name")),
    ],
)
def test_a_folder_that_is_not_there_is_asked_of_the_hub_if_it_may_be_there(hub, name, asked, why):
    assert refused(f"model.init='{name}'") == [f"model.init={name}: no such folder, and {why}"]
    assert [it for it, _ in hub] == [name] * asked


@pytest.mark.slow
def test_a_model_on_the_hub_is_downloaded_and_used(monkeypatch, bert, tmp_path):
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(bert)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    summary = runs.tiny_run(tmp_path, "model.init=owner/name", *STILL, task="mlm")
    assert summary["vocabulary"] == len(PIECES) and config_of(tmp_path)["model"]["init"] == "owner/name"
    assert {name for name, _ in asked} == {"owner/name"}
    assert {"config.json", "*.safetensors", "vocab.txt", "tokenizer.json"} <= set(asked[0][1])


def test_more_positions_than_the_weights_have_and_other_pieces_are_said_at_once(bert, pretrained, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES[:20]) + "\n")
    typed = ("model.max_source=101", "tokenizer=wordpiece", f"tokenizer.file={tmp_path}/vocab.txt")
    assert refused(f"model.init={bert}", *typed, "data.batch_tokens=2000") == [
        f"model.max_source=101: model.init={bert} has 100 positions",
        f"tokenizer.file={tmp_path}/vocab.txt: 20 pieces, but model.init={bert} was trained with {len(PIECES)}",
    ]
    assert refused(f"model.init={bert}", "model.max_target=101", "data.batch_tokens=2000", task="gigaword") == [
        f"model.max_target=101: model.init={bert} has 100 positions"
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    assert refused(f"model.init={pretrained}", f"tokenizer.file={tmp_path}/vocab.txt") == [
        f"tokenizer.file={tmp_path}/vocab.txt: {len(PIECES)} pieces, but model.init={pretrained} was trained with 300"
    ]


def test_a_typed_vocabulary_of_the_right_size_and_a_typed_lowercase_are_kept(bert, tmp_path):
    (tmp_path / "mine.txt").write_text("\n".join([*PIECES[:-1], "##ing"]) + "\n")
    for typed, file in (((), bert), ((f"tokenizer.file={tmp_path}/mine.txt",), tmp_path / "mine.txt")):
        cfg = runs.tiny(f"model.init={bert}", *typed, "tokenizer.lowercase=false", task="mlm")
        assert {"_target_": WORDPIECE, "file": str(file), "lowercase": False}.items() <= cfg["tokenizer"].items()


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("model.max_source=many",), "model.max_source=many: allowed: whole numbers"),
        (("tokenizer.lowercase=maybe",), "tokenizer.lowercase=maybe: allowed: true, false or null"),
        (("tokenizer.file=nowhere.txt",), "tokenizer.file=nowhere.txt: "),
        (("ckpt_path=nowhere.ckpt",), "ckpt_path=nowhere.ckpt: no such file"),
        (("ckpt_path=[5]",), "ckpt_path=[5]: allowed: text that is not empty or null"),
        (("model.init=[5]",), "model.init=[5]: allowed: text that is not empty or null"),
    ],
)
def test_values_that_are_none_are_said_as_ever(bert, overrides, problem):
    problems = refused(f"model.init={bert}", *overrides)
    assert problems[0].startswith(problem)


def test_folders_without_weights_or_vocabulary_are_said(copy):
    (copy / "vocab.txt").rename(copy / "other.txt")
    assert refused(f"model.init={copy}") == [f"tokenizer.file={copy}: no vocab.txt or tokenizer.json in this folder"]
    (copy / "other.txt").rename(copy / "vocab.txt")
    (copy / "model.safetensors").unlink()
    [problem] = refused(f"model.init={copy}")
    assert problem.startswith(f"model.init={copy}: {copy}/model.safetensors: there is no such file")
    (copy / "config.json").write_text('{"model_type": "gptj"}')
    (copy / "model.safetensors").touch()
    [problem] = refused(f"model.init={copy}")
    only = "only 'bert' and 'gpt2' can be read"
    assert problem.startswith(f"model.init={copy}: {copy}/config.json: model_type='gptj': {only}")
    (copy / "config.json").write_text('{"model_type": "gpt2"}')
    assert refused(f"model.init={copy}") == [
        f"model.init={copy}: has the weights of a decoder-only model, but this model is an encoder"
    ]
    (copy / "config.json").unlink()
    [problem] = refused(f"model.init={copy}")
    assert problem.startswith(f"model.init={copy}: {copy}/config.json: there is no such file")


def test_runs_without_checkpoint_or_tokenizer_are_said(tmp_path, pretrained):
    run = shutil.copytree(pretrained, tmp_path / "run")
    (run / "checkpoints/best.ckpt").unlink()
    assert refused(f"model.init={run}") == [f"model.init={run}: no checkpoint {run}/checkpoints/best.ckpt"]
    (run / "tokenizer.json").unlink()
    (run / "checkpoints/best.ckpt").touch()
    kinds = "tokenizer=sentencepiece, wordpiece, gpt2 or huggingface"
    assert refused(f"model.init={run}") == [
        f"model.init={run}: only the tokenizers of runs with {kinds} can be taken over"
    ]


def test_what_a_task_cannot_do_with_the_tokenizer_of_a_run_is_said(tmp_path, pretrained):
    """Masked language modelling needs a mask token, which sentencepiece has not; and a file must fit the weights."""
    headlines = runs.finished_run()
    assert refused(f"model.init={headlines}") == [
        f"tokenizer._target_={runs.SENTENCEPIECE}: has no mask token, which this task needs; use tokenizer=wordpiece"
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    file = f"tokenizer.file={tmp_path}/vocab.txt"
    assert refused(f"model.init={headlines}", file, task="classify") == [
        f"{file}: for WordPiece, but model.init={headlines} was trained with SentencePiece; leave tokenizer.file out"
    ]
    assert refused(f"model.init={headlines}", "model.max_source=65", "model.max_target=33", task="gigaword") == [
        f"model.max_source=65: model.init={headlines} has 64 positions",
        f"model.max_target=33: model.init={headlines} has 32 positions",
    ]


def test_shapes_that_do_not_fit_are_all_listed_and_stop_the_run(tmp_path, copy):
    """A config.json that does not say what the weights are, and a tensor that is missing."""
    tensors = load_file(copy / "model.safetensors")
    del tensors["bert.encoder.layer.1.output.dense.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"intermediate_size": 44}))
    with pytest.raises(ConfigError) as caught:
        train(runs.tiny(f"model.init={copy}", task="squad"), tmp_path / "run")
    [problem] = caught.value.problems
    assert problem.startswith(f"model.init={copy}: the weights do not fit the model:")
    lines = [line.strip() for line in problem.splitlines()]
    assert len([line for line in lines if "in the weights" in line]) == 5
    assert "encoder.layers.1.feed_forward.0.weight: (40, 24) in the weights, (44, 24) in the model" in lines
    assert "encoder.layers.1.feed_forward.2.weight: missing from the weights, (24, 44) in the model" in lines
    assert runs.summary_of(tmp_path / "run")["state"] != "finished"


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, copy):
    tensors = load_file(copy / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"][3, :2] = torch.nan
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"not finite: encoder\.embeddings\.tokens\.weight \(2 of [\d,]+ values\)"):
        runs.tiny_run(tmp_path / "run", f"model.init={copy}", task="mlm")


@pytest.mark.parametrize(("key", "value"), [("d_model", "x"), ("max_source", [1]), ("positions", 3), ("n_heads", None)])
def test_a_run_with_values_of_another_kind_is_refused(tmp_path, key, value):
    run = runs.copied_run(tmp_path, "mlm")
    config = config_of(run)
    config["model"][key] = value
    runs.write_settings(run, config)
    [problem] = refused(f"model.init={run}")
    shown = "null" if value is None else value
    assert problem.startswith(f"model.init={run}: run.json: model.{key}={shown}: allowed: ")


@pytest.mark.slow
def test_a_shape_that_was_typed_is_not_passed_over(copy):
    typed = [*runs.tiny_overrides("mlm"), f"model.init={copy}"]
    with pytest.raises(ConfigError) as caught:
        runs.checked(runs.composed(*typed), overrides=["model.d_model=16", "model.norm_eps=1e-3"])
    assert caught.value.problems == ["model.d_model=16: ignored: model.init fixes it at 24"]


@pytest.mark.slow
def test_only_words_can_be_read_by_an_encoder_that_was_trained_on_words():
    answering = runs.finished_run("vqa")
    said = f"model.init={answering}: a run of attnorm.models.vqa.pythia.Pythia, which has no encoder to start from"
    assert refused(f"model.init={answering}") == [said]
    said = f"model.init={answering}: this model cannot start from trained weights"
    assert refused(f"+model.init={answering}", task="vqa") == [said]


# decoder-only models


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A GPT-2 that transformers wrote, and its vocab.json and merges.txt."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("gpt2")
    sizes = {"n_embd": 24, "n_layer": 3, "n_head": 3, "n_inner": 40, "n_positions": 100}
    sizes |= {"vocab_size": write_bpe(folder), "layer_norm_epsilon": 1e-3}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(folder)
    return folder


def with_gpt(start, model="gpt_tiny", tokenizer="sentencepiece", **settings):
    """The groups of a configuration that `with_init` reads."""
    tokenizer = {name: None if name == "file" else it for name, it in choices("tokenizer")[tokenizer].items()}
    model = {**choices("model")[model], **settings, "init": str(start)}
    return {"model": model, "tokenizer": tokenizer, "ckpt_path": None}


def test_a_gpt_starts_from_a_gpt2_with_its_shape_and_its_tokenizer(gpt2):
    cfg = init.with_init(with_gpt(gpt2, max_target=64, dropout=0.25))
    expected = {"d_model": 24, "n_heads": 3, "ffn_dim": 40, "decoder_layers": 3, "positions": "learned"}
    expected |= {"norm_eps": 1e-3, "activation": "gelu_new", "tie_embeddings": True, "norm_first": True}
    expected |= {"max_target": 64, "dropout": 0.25}  # what stays as it was set
    assert {name: cfg["model"][name] for name in expected} == expected
    assert cfg["tokenizer"] == {"_target_": "attnorm.data.tokenizers.bpe.ByteBPE", "file": str(gpt2)}
    shape = GPTConfig(**{name: it for name, it in cfg["model"].items() if name not in ("_target_", "init")})
    tables = {"decoder": "dnas_prefix", "prior": {}, "scorer": {}, "options": {}}
    model = GPT(shape, tables, 257)
    filled = init.load_pretrained(model, str(gpt2))
    assert not filled.missing and not filled.unused
    theirs = read_weights(gpt2)
    for name, value in model.state_dict().items():
        source = theirs["embeddings.tokens.weight" if name == "output.weight" else name]
        assert torch.equal(value, source[: len(value)]), name


def test_weights_of_the_other_kind_and_too_many_positions_are_refused(gpt2, copy, pretrained):
    def problems(*args, **settings):
        with pytest.raises(ConfigError) as caught:
            init.with_init(with_gpt(*args, **settings))
        return caught.value.problems

    for start in (copy, pretrained):
        kinds = "has the weights of an encoder, but this model is a decoder-only model"
        assert problems(start) == [f"model.init={start}: {kinds}"]
    assert problems(gpt2, max_target=101) == [f"model.max_target=101: model.init={gpt2} has 100 positions"]
    [problem] = problems(gpt2, "transformer_captioner")
    assert problem.endswith("this model cannot start from trained weights")


def test_the_shape_of_a_run_of_a_gpt_is_that_of_a_new_one(pretrained, tmp_path):
    run = shutil.copytree(pretrained, tmp_path / "run")
    earlier = {"d_model": 24, "n_heads": 3, "positions": "alibi", "rotary_base": 50, "activation": "swiglu"}

    def rewrite(**settings):
        model = {**choices("model")["gpt_tiny"], **earlier, "max_target": 77, **settings}
        runs.write_settings(run, {**config_of(pretrained), "model": model})

    rewrite()
    cfg = init.with_init(with_gpt(run, max_target=300, decoder_layers=9))
    assert {name: cfg["model"][name] for name in earlier} == earlier and cfg["model"]["decoder_layers"] == 4
    assert cfg["model"]["max_target"] == 300 and cfg["tokenizer"]["file"] == str(run)
    assert refused(f"model.init={run}") == [
        f"model.init={run}: has the weights of a decoder-only model, but this model is an encoder"
    ]
    for settings, problem in (
        ({"positions": "learned"}, f"model.max_target=300: model.init={run} has 77 positions"),
        ({"activation": "tanh"}, f"model.init={run}: run.json: model.activation=tanh"),
    ):
        rewrite(**settings)
        with pytest.raises(ConfigError) as caught:
            init.with_init(with_gpt(run, max_target=300, decoder_layers=9))
        assert caught.value.problems[0].startswith(problem)
