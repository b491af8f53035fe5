"""Configurations: every shipped file composes and is sound, every key is read, every problem is said at once."""

import copy
import importlib.util
import inspect
import re
from dataclasses import fields
from itertools import chain, takewhile
from pathlib import Path

import pytest
import pytorch_lightning as pl
import runs
import torch
import yaml
from gpt_builders import write_bpe
from marks import slow
from omegaconf import OmegaConf
from safetensors.torch import save_file

from attnorm import settings as resolved
from attnorm.choices import choices
from attnorm.cli.main import VERBS
from attnorm.config import lightning
from attnorm.config.lightning import FACTS
from attnorm.config.read import GROUPS, read_settings
from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.sources.gigaword import FILES
from attnorm.data.sources.newswire import Newswire
from attnorm.errors import ConfigError
from attnorm.imports import locate
from attnorm.models.generation import Decoding
from attnorm.optim import ParamGroups, refusals, warmup_decay
from attnorm.parts import TARGET, Part
from attnorm.schema import parameters
from attnorm.settings import DataConfig, PathsConfig, RunConfig, StartConfig, TaskConfig, TrainerConfig
from attnorm.training.trainer import build_entries

YAML_FILES = sorted(runs.CONF.rglob("*.yaml"))
GROUP_FILES = [file for file in YAML_FILES if file.parent != runs.CONF and file.parent.name not in ("hydra", "ladder")]
NO_COMMAND = {"data/base.yaml", "data/cleaned.yaml", "hydra/default.yaml"}  # not to be chosen by themselves
NOT_CHOSEN = {"data/base.yaml", "data/cleaned.yaml"}
if importlib.util.find_spec("bible_alignments") is None:
    NOT_CHOSEN.add("data/bible_alignments.yaml")  # refused without the package
VISUAL = [f"{split}_{file}" for split in ("train", "validation") for file in ("questions", "annotations")]


def name_of(file):
    return str(file.relative_to(runs.CONF))


def chosen(file):
    return f"{file.parent.name}={file.stem}"


def opening(file):
    """The first comment of a file."""
    return [*takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())]


def task_of(file):
    """The choice of the task in the command that opens a file of data or of a model, if it has one."""
    return re.findall(r"task=\w+", "".join(opening(file)))[:1] if file.parent.name in ("data", "model") else []


@pytest.fixture
def needed(tmp_path, monkeypatch):
    """What the files of conf/ ask for: files, folders, variables, a GPU. A function from a file to its overrides."""
    monkeypatch.setenv("ATTNORM_LOGS", str(tmp_path))
    monkeypatch.setenv("ATTNORM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(lightning, "refused_by_lightning", lambda trainer: [])  # it sees no GPU here
    for name in (*FILES["train"], *FILES["validation"], "pairs.tsv", "others.tsv"):
        (tmp_path / name).write_text("article\ttitle\n")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    table, other = tmp_path / "pairs.tsv", tmp_path / "others.tsv"
    rush, pairs = [f"data.dir={tmp_path}"], [f"data.{split}={table}" for split in ("train", "validation")]
    vocabulary = [f"tokenizer.file={tmp_path}/vocab.txt"]
    labelled = [*pairs, "data.labels=[a,b]"]
    (tmp_path / "squad.json").write_text('{"data": []}')
    squad = [f"data.{split}={tmp_path}/squad.json" for split in ("train", "validation")]
    visual = [f"data.{name}={tmp_path}/{name}.json" for name in VISUAL]
    for name in VISUAL:
        (tmp_path / f"{name}.json").write_text("{}")
    views = [tmp_path / f"{name}.safetensors" for name in ("first", "second")]
    for view in views:
        save_file({"1": torch.zeros(1, 3), "1.boxes": torch.zeros(1, 4)}, view)
    for folder in ("texts", "gpt2"):
        (tmp_path / folder).mkdir()
    write_bpe(tmp_path / "gpt2")
    for name in ("one.txt", "two.txt"):
        (tmp_path / "texts" / name).write_text("A sentence.\n")
    for name in ("train.de", "train.en", "val.de", "val.en"):
        (tmp_path / name).write_text("a sentence .\n")
    documents = [f"data.folder={tmp_path}/texts"]
    needs = {
        "data/folders.yaml": documents,
        "task/document_classification.yaml": documents,
        **{f"model/{name}_tiny.yaml": documents for name in ("flat", "hierarchical")},
        "data/multi30k.yaml": [f"data.dir={tmp_path}"],
        "data/parallel_files.yaml": [
            f"data.dir={tmp_path}",
            *("data.source_language=de", "data.target_language=en", "data.validation=val"),
        ],
        "data/text.yaml": [f"data.files={table}"],
        "data/text_hub.yaml": ["data.path=owner/name"],
        "tokenizer/gpt2.yaml": ["task=causal_lm", f"tokenizer.file={tmp_path}/gpt2", "~tokenizer.vocab_size"],
        "tokenizer/huggingface.yaml": [f"tokenizer.file={tmp_path}/vocab.txt"],
        "data/squad.yaml": squad,
        "data/labelled.yaml": labelled,
        "task/squad.yaml": squad,
        "task/classify.yaml": labelled,
        "task/mnli.yaml": pairs,
        "data/caption_files.yaml": [
            *pairs,
            f"data.images={tmp_path}",
            *(f"data.{split}_list={path}" for split, path in (("train", table), ("validation", other))),
        ],
        "data/vqa_v2.yaml": ["model.fusion=none", *visual],
        "data/gigaword.yaml": rush,
        "data/pair_files.yaml": pairs,
        "data/hub_pairs.yaml": ["data.path=owner/name"],
        "tokenizer/wordpiece.yaml": vocabulary,
        "experiment/gigaword_paper.yaml": [*rush, *vocabulary],
        "experiment/reuters.yaml": rush,
        "experiment/vqa_paper.yaml": [*visual, f"data.features=[{views[0]},{views[1]}]"],
        "experiment/mlm_paper.yaml": [f"data.files={table}"],
        "experiment/mlm_small.yaml": [f"data.files={table}"],
    }
    return lambda file: [chosen(file), *task_of(file), *needs.get(name_of(file), [])]


def refused(*overrides, task="gigaword"):
    """The problems of a tiny configuration with these changes."""
    with pytest.raises(ConfigError) as caught:
        runs.tiny(*overrides, task=task)
    return caught.value.problems


def refused_in_a_sweep(*changes):
    """The problems of a tiny configuration with these changes, if only what files do not set is tried."""
    settings = runs.plain_settings(runs.composed(*runs.tiny_overrides(), *changes))
    return runs.problems(settings, overrides=changes, trains=False)


def keys_of(file):
    """The keys of a file of conf/, as they are typed."""
    text = file.read_text()
    keys = [key for key, _ in resolved.leaves(yaml.safe_load(text) or {}) if key != "defaults"]
    is_global = file.parent == runs.CONF or "@package _global_" in text
    return keys if is_global else [f"{file.parent.name}.{key}" for key in keys]


# every file


CHOSEN = [f for f in GROUP_FILES if name_of(f) not in NOT_CHOSEN]
FIRST = {f.parent: f for f in reversed(CHOSEN)}  # of each group


@pytest.mark.parametrize("file", [f if f in FIRST.values() else slow(f) for f in CHOSEN], ids=name_of)
def test_every_file_composes_alone_and_is_sound(needed, file):
    composed = runs.composed(*needed(file))
    cfg = OmegaConf.to_container(composed, resolve=True)
    config = runs.checked(composed)
    record = config.settings
    assert refusals(config.optimization) == []  # which is not tried again for what a file sets
    assert read_settings(copy.deepcopy(record)).settings == record  # a record resolves to itself
    assert record.keys() >= cfg.keys() - {"experiment", "debug"}
    assert [key for key in record if key in cfg and key in GROUPS] == [key for key in cfg if key in GROUPS]


@pytest.mark.slow
def test_a_file_that_is_only_a_base_is_refused_with_a_message():
    with pytest.raises(ConfigError, match="data"):
        runs.checked(runs.composed("data=base"))


@pytest.mark.parametrize("file", [f for f in GROUP_FILES if "???" in re.sub("#.*", "", f.read_text())], ids=name_of)
def test_keys_that_have_to_be_given_are_asked_for(file):
    missing = [key for key in keys_of(file) if re.search(rf"^{key.split('.')[1]}: \?\?\?", file.read_text(), re.M)]
    assert missing
    with pytest.raises(ConfigError) as caught:
        runs.checked(runs.composed(chosen(file)))
    assert caught.value.problems == sorted(f"{key}: must be given, as in {key}=<value>" for key in missing)


@pytest.mark.parametrize("file", YAML_FILES, ids=name_of)
def test_every_file_opens_with_the_command_that_uses_it(file):
    assert opening(file)
    command = rf"\b(python (train|eval|generate)\.py|attnorm ({'|'.join(VERBS)}))\b"
    commands = [line for line in opening(file) if re.search(command, line)]
    if name_of(file) in NO_COMMAND:
        assert not commands
    elif file.parent == runs.CONF:
        starts = (f"# python {file.stem}.py", f"# attnorm {file.stem}")
        assert "".join(commands[:1]).startswith(starts), f"{file.stem} is no verb, or its file shows no command of it"
    else:
        assert any(f"{chosen(file)}" in line or f"{file.parent.name}." in line for line in commands)


def test_every_key_is_explained_where_it_is_set_first():
    """A comment on its line or on that of a table it stands in, in one of the files that set it."""
    explained, seen = set(), set()
    for file in YAML_FILES:
        prefix = [] if file.parent == runs.CONF or "@package _global_" in file.read_text() else [file.parent.name]
        path: list[tuple[int, str, bool]] = []
        for line in file.read_text().splitlines():
            if found := re.match(r"( *)([\w-]+):", line):
                indent = len(found[1])
                path = [entry for entry in path if entry[0] < indent]
                path.append((indent, found[2], " # " in line))
                if any(commented for *_, commented in path):
                    explained.add(".".join([*prefix, *(name for _, name, _ in path)]))
        seen.update(keys_of(file))
    lightnings = {key for key in seen if key.startswith("trainer.")}  # Lightning's documentation explains them
    ours = {key for key in seen - lightnings if not key.startswith("hydra.") and key not in ("defaults", "trainer")}
    assert {key for key in ours if key not in explained and not key.endswith("_target_")} == set()
    assert set(inspect.signature(pl.Trainer).parameters) >= {key.split(".")[1] for key in lightnings}


def options_of_parts():
    """'model.d_model' for every option of every part of this package that a file of conf/ names."""
    for group, makers in {
        "task": lambda cls: [cls.Config],
        "model": lambda cls: [getattr(cls, "Config", cls)],
        "data": lambda cls: [cls],
        "tokenizer": lambda cls: [cls.from_settings],
    }.items():
        for settings in choices(group).values():
            settings = settings.get(group, settings)
            if TARGET in settings:
                for maker in makers(locate(settings[TARGET])):
                    yield from (f"{group}.{name}" for name in parameters(maker))
    for group in ("callbacks", "logger"):
        for settings in choices(group).values():
            for name, entry in settings.items():
                if name != "defaults" and entry[TARGET].startswith("attnorm."):
                    yield from (f"{group}.{name}.{key}" for key in parameters(locate(entry[TARGET])))
    yield from (f"scheduler.{name}" for name in parameters(warmup_decay))
    classes = {"paths.": PathsConfig, "data.": DataConfig, "optimizer.": ParamGroups}
    classes |= {"decoding.": Decoding, "model.": StartConfig}
    yield from RunConfig.model_fields
    yield from (f"{prefix}{field.name}" for prefix, cls in classes.items() for field in fields(cls))


@pytest.mark.slow
def test_every_option_of_every_part_is_set_and_so_explained_in_some_file():
    facts = {"self", "draw", "optimizer", "total_steps", "attention", "seed", *chain.from_iterable(FACTS.values())}
    options = {key for key in options_of_parts() if key.split(".")[-1] not in facts or "." not in key}
    assert len(options) > 80
    in_comments = {"optimizer.freeze", "optimizer.lr_factors"}  # new keys would make old runs of a sweep other runs
    assert options - {key for file in YAML_FILES for key in keys_of(file)} == in_comments


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    (
        *("", "model.", "optimizer.", "scheduler.", "callbacks.", "callbacks.progress.", "logger.", "paths.", "task."),
        *("decoding.", "trainer.", "data.", "tokenizer.", "attention.", "attention.prior.", "attention.scorer."),
        *("attention.options.", "attention.options.hnas."),
    ),
)
def test_a_key_that_nothing_reads_is_refused_by_name(table):
    key = f"{table}bogus"
    value = "{x: 1}" if key == "attention.options.bogus" else "dnas"
    problems = refused("attention=hnas", f"+{key}={value}")
    assert any(problem.startswith(key) or ("bogus" in problem and key.split(".")[0] in problem) for problem in problems)


@pytest.mark.parametrize("key", ["tags._target_", "tags.a.b", "tags.0", "attention.options.mix.parts.x"])
def test_a_key_below_a_list_is_refused(key):
    whole = "tags" if key.startswith("tags") else "attention.options.mix.parts"
    problem = f"{key}=x: {whole} is a list, which has no such entry; type {whole}=[...]"
    assert refused("attention.options.mix.parts=[softmax,dnas]", f"{key}=x") == [problem]


def test_a_key_below_a_value_is_refused():
    cfg = copy.deepcopy(runs.tiny().settings)
    cfg["data"]["lowercase"] = {"bogus": True}
    assert "data.lowercase" in " ".join(runs.problems(cfg))


# values


def test_all_problems_are_reported_together_and_before_data_is_read(monkeypatch):
    def read(*_):
        raise AssertionError("data was read")

    monkeypatch.setattr(Newswire, "rows", read)
    wrong = {
        "seed": "x",
        "model.dropout": 1.0,
        "optimizer.lr": 0,
        "trainer.max_steps": 0,
        "data.train_size": 0,
        "tokenizer.model_type": "bpee",
        "attention.cross": "dnas",
        "attention.encoder": "hnass",
        "decoding.beam_size": 0,
        "task.rouge_pairs": 1001,
        "callbacks.early_stopping.patience": 0,
    }
    rounds = [{key for key in wrong if not key.startswith(("attention", "callbacks"))}]  # then what needs other groups
    rounds += [{"attention.cross", "attention.encoder"}, {"callbacks.early_stopping.patience"}]
    for keys in rounds:
        problems = refused(*(f"{key}={value}" for key, value in wrong.items()))
        assert len(problems) == len(keys)
        for key in keys:
            assert [problem for problem in problems if problem.startswith(f"{key}={wrong[key]}")] != [], key
        wrong = {key: value for key, value in wrong.items() if key not in keys}
    assert not wrong


def test_the_arguments_of_the_trainer_are_those_of_lightning():
    own, of_lightning = parameters(TrainerConfig), inspect.signature(pl.Trainer).parameters
    assert own.keys() | lightning.OWN_KEYS.keys() == of_lightning.keys() and own.keys().isdisjoint(lightning.OWN_KEYS)
    different = {name for name in own if own[name].default not in (of_lightning[name].default, None)}
    assert different == {"accumulate_grad_batches", "fast_dev_run"} - different or not different


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ("seed=-1", "whole numbers from 0"),
        ("seed=4294967296", "to 4294967295"),
        ("optimizer.lr=fast", "numbers above 0"),
        ("optimizer.weight_decay=-0.1", "numbers from 0"),
        ("model.dropout=1", "numbers from 0 and below 1"),
        ("scheduler.warmup=1.0", "numbers from 0 and below 1"),
        ("scheduler.decay=exponential", "constant, linear, cosine"),
        ("model.tie_embeddings=1", "true, false"),
        ("trainer.max_epochs=0", "whole numbers from 1, null or -1 (no limit)"),
        ("trainer.limit_val_batches=1.5", "numbers above 0 and up to 1.0 (a share of them) or null"),
        ("trainer.limit_val_batches=0", "whole numbers from 1"),
        ("trainer.limit_train_batches=0", "whole numbers from 1"),
        ("trainer.val_check_interval=-1", "whole numbers from 1"),
        ("trainer.accumulate_grad_batches=0", "whole numbers from 1"),
        ("trainer.max_time=soon", "DD:HH:MM:SS above 0 or null"),
        ("trainer.max_time=00:00:00:00", "DD:HH:MM:SS above 0 or null"),
        ("trainer.gradient_clip_val=nan", "numbers from 0 or null"),
        ("trainer.log_every_n_steps=-1", "whole numbers from 0 or null"),
        ("trainer.num_sanity_val_steps=-2", "whole numbers from -1 or null"),
        ("+trainer.min_steps=.nan", "whole numbers from 0 or null"),
        ("trainer.detect_anomaly=2", "true, false or null"),
        ("+trainer.inference_mode=-1", "true, false"),
        ("trainer.devices=999", "on the CPU of this machine"),
        ("trainer.devices='999'", "on the CPU of this machine"),
        ("trainer.deterministic=x", "true, false, warn, null"),
        ("tags=[1]", "a list of text"),
        ("paths.log_dir=''", "text that is not empty"),
        ("callbacks.progress.samples=-1", "whole numbers from 0"),
        ("callbacks.early_stopping.patience=0", "whole numbers from 1 or null"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(change, allowed):
    key = change.lstrip("+").partition("=")[0]
    [problem] = refused(change)
    assert problem.startswith(f"{key}=")
    assert "allowed: " in problem and allowed in problem
    assert refused_in_a_sweep(change) == [problem]


@pytest.mark.parametrize(
    "change",
    [
        "seed=0",
        "optimizer.betas=[0,0.5]",
        "trainer.devices=auto",
        "trainer.precision=bf16-mixed",
        "trainer.limit_val_batches=0.5",
        "trainer.gradient_clip_val=0",
        "trainer.num_sanity_val_steps=-1",
        "trainer.fast_dev_run=2",
        "trainer.max_time=00:01:00:00",
        "trainer.deterministic=warn",
        "trainer.max_epochs=-1",
        "trainer.val_check_interval=0.25",
        "+trainer.benchmark=true",
        "tags=[a,b]",
        "callbacks.attention_stats.every_n_steps=0",
        "data.batch_tokens=96",  # one pair of the longest
        "trainer.accumulate_grad_batches=4 trainer.limit_train_batches=0.3",  # a share of the updates
    ],
)
def test_values_that_are_allowed_are_accepted(change):
    assert runs.tiny(*change.split())


EVERY_4 = "trainer.accumulate_grad_batches=4"
MISFITS = [  # what is typed, and how the only problem begins
    ("model.n_heads=3", "model.d_model=16.*: .*not a multiple of model.n_heads=3"),
    ("decoding.max_length=32", "decoding.max_length=32: .*must be below model.max_target=32"),
    ("decoding=greedy", "decoding=greedy: expected settings by name, as in decoding.<name>=<value>"),
    ("decoding.min_length=7", "decoding.min_length=7: .*must be at most decoding.max_length=6"),
    ("data.batch_tokens=95", "data.batch_tokens=95: .*must be at least 96, the tokens of the longest possible pair"),
    ("ckpt_path=nowhere/last.ckpt", "ckpt_path=nowhere/last.ckpt: .*no such file"),
    *((f"{EVERY_4} trainer.val_check_interval={it}", f".*val_check_interval={it}: .* a multiple of") for it in (5, 1)),
    (f"{EVERY_4} trainer.limit_train_batches=7", "trainer.limit_train_batches=7: .* must be a multiple of"),
    *((f"attention.prior.encoder={it}", "attention.prior.encoder=") for it in ("t5", "null")),
    *(
        (f"logger=wandb logger.wandb.mode={it}", f"logger.wandb.mode={it}: allowed: online, offline or null$")
        for it in ("of", "3")
    ),
    *(
        slow(f"+scheduler.{it}", f"scheduler.{it}: .*counts all updates of the run")
        for it in ("interval=epoch", "frequency=2")
    ),
    slow("trainer.strategy=foo", "trainer.strategy=foo: .*foo"),  # this and what follows, Lightning would refuse later
    slow("trainer.devices=[0,7]", r"trainer.devices=\[0,7\]: .*int"),
    slow("+trainer.gradient_clip_algorithm=foo", "trainer.gradient_clip_algorithm=foo: "),
    slow("trainer.profiler=pytorch", "trainer.profiler=pytorch: allowed: simple or null; advanced and pytorch were re"),
    slow("trainer.precision=8", "trainer.precision=8: .*'32-true'"),
    slow("trainer.devices=0", "trainer.devices=0: .*not a valid input"),
    slow("trainer.devices=[]", r"trainer.devices=\[\]: .*not a valid input"),
    slow("+trainer.benchmark=3", "trainer.benchmark=3: .*expects a bool"),
    slow("trainer.accumulate_grad_batches=500", "trainer.accumulate_grad_batches=500: .*data.train_size=200"),
]


@pytest.mark.parametrize(("typed", "words"), MISFITS)
def test_values_that_do_not_fit_each_other_are_refused(typed, words):
    [problem] = refused(*typed.split())
    assert re.match(words, problem)
    assert refused_in_a_sweep(*typed.split()) == [problem]


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    [problem] = refused("trainer.accelerator=gpu")
    assert problem.startswith("trainer.accelerator=gpu") and "trainer=cpu" in problem


def test_an_environment_that_does_not_suit_lightning_is_not_blamed_on_a_key(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    [problem] = refused()
    assert problem.startswith("trainer: ") and "--ntasks" in problem


@pytest.mark.parametrize("key", ["paths.log_dir", "paths.cache_dir"])
@pytest.mark.parametrize("below", ["", "/a/b"])
def test_a_file_in_place_of_a_folder_is_refused(tmp_path, key, below):
    (tmp_path / "file").write_text("text")
    [problem] = refused(f"{key}={tmp_path}/file{below}")
    assert problem.startswith(f"{key}={tmp_path}/file{below}: must be a folder")


ODD = [None, "x", -1, 2.5, True, [], ["x"], {"x": 1}, float("nan")]


@pytest.mark.parametrize(
    "group", ["data", "model", "attention", "tokenizer", "optimizer", "scheduler", "task", "decoding"]
)
def test_no_value_of_any_key_breaks_the_check(group):
    """A problem is a message, whatever was typed."""
    base = {**runs.tiny("attention=hnas").settings, "attention": runs.plain("attention=hnas")["attention"]}
    base["attention"]["prior"] = {"encoder": ["t5"]}
    broken = []
    for key, _ in resolved.leaves(base[group]):
        *path, last = key.split(".")
        for odd in ODD:
            cfg = copy.deepcopy(base)
            table = cfg[group]
            for name in path:
                table = table[name]
            table[last] = odd
            try:
                runs.problems(cfg)
            except Exception as error:
                broken.append(f"{group}.{key}={odd}: {type(error).__name__}: {error}")
    assert broken == []


# names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("attention.encoder=hnass",), "Did you mean 'hnas'?"),
        (("attention.prior.encoder=[t6]",), "Did you mean 't5'?"),
        (("attention.scorer.encoder=scaled_dots",), "Did you mean 'scaled_dot'?"),
        (("attention=hnas", "+attention.options.hnas.strat=0.3"), "Did you mean 'start'?"),
        (("attention=hnas", "attention.options.hnas.form=sigmoyd"), "sigmoid"),
        (("+attention.options.hnass={start: 0.3}", "attention=hnas"), "Did you mean 'hnas'?"),
        (("+trainer.max_stps=3",), "Did you mean 'max_steps'?"),
        (("+data.trian_size=3",), "train_size"),
        (("+optim.lr=3",), "Did you mean 'optimizer'?"),
        ((f"attention.encoder={__name__}:Nothing",), "has no Nothing"),
        (("attention.encoder=attnorm.attention.normalizers.dnas.DNAZ",), "Did you mean 'DNAS'?"),
        (("attention.encoder=nowhere:Nothing",), "No module named 'nowhere'"),
        (("task.monitor=accuracy",), "task.monitor=accuracy: allowed: loss, perplexity, rouge1, rouge2, rougeL"),
        (("task.monitor=rougeL", "task.rouge_pairs=0"), "task.monitor=rougeL: allowed: loss, perplexity"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(changes, words):
    [problem] = refused(*changes)
    assert words in problem


@pytest.mark.slow
def test_what_another_model_has_is_not_suggested():
    [problem] = refused("+model.typ=2", task="vqa")
    assert "type_vocab_size" not in problem  # that is BERT's


@pytest.mark.slow
@pytest.mark.parametrize("group", ["callbacks", "logger", "experiment", "debug", "trainer"])
def test_a_group_may_be_null_if_a_run_needs_nothing_of_it(group):
    cfg = runs.checked(runs.composed(f"{group}=null"))
    assert not cfg.settings.get(group)


def test_a_source_that_gives_something_else_is_refused_with_the_sources_that_fit(monkeypatch):
    monkeypatch.setattr(Newswire, "schema", DOCUMENTS)
    [problem] = refused()
    sources = "data=gigaword, data=hub_pairs, data=pair_files"
    assert problem == f"data: Newswire yields documents, but this task needs pairs; use {sources}"


@pytest.mark.parametrize("debug", ["fdr", "limit"])
def test_these_debug_settings_fit_every_task(debug):
    of_task = {key.partition(".")[2] for key in keys_of(runs.CONF / f"debug/{debug}.yaml") if key.startswith("task.")}
    assert of_task <= set(parameters(TaskConfig))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model._target_=torch.nn.Linear", "must be a model with an `interface`"),
        ("model._target_=torch.optim.SGD", "must be a subclass of torch.nn.modules.module.Module"),
        ("data._target_=os.system", "must be a subclass of attnorm.data.sources.base.Source"),
        ("tokenizer._target_=os.system", "must be a subclass of attnorm.data.tokenizers.base.Tokenizer"),
        ("task._target_=attnorm.tasks.headlines.Nothing", "attnorm.tasks.headlines has no Nothing"),
        ("callbacks.progress._target_=torch.nn.Linear", "must be a subclass of"),
        ("callbacks.progress=3", "expected an entry with a _target_"),
        ("+logger.mine._target_=torch.nn.Linear", "must be a subclass of"),
    ],
)
def test_what_is_not_such_a_part_is_refused(change, words):
    problems = refused(change)
    key, _, value = change.lstrip("+").partition("=")
    assert any(problem.startswith(f"{key}={value}: {words}") for problem in problems), problems


@pytest.mark.slow
@pytest.mark.parametrize("key", lightning.OWN_KEYS)
def test_trainer_keys_that_a_run_sets_are_refused_with_what_to_use(key):
    assert refused(f"+trainer.{key}=1") == [f"trainer.{key}: cannot be set; {lightning.OWN_KEYS[key]}"]
    assert key in inspect.signature(pl.Trainer).parameters


# what is recorded, and how a run is named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "label"),
    [
        (("attention=hnas",), "hnas"),
        (("attention=softmax", "attention.encoder=dnas"), "dnas"),
        (("attention=dnas_prefix", "attention.encoder=softmax"), "softmax_decoder-dnas_prefix_cross-dnas_prefix"),
        (("attention=entmax",), "entmax_all"),
        (("attention=dnas_prefix",), "dnas_decoder-dnas_prefix_cross-dnas_prefix"),
        (("attention=dnas", "attention.decoder=dnas_prefix"), "dnas_decoder-dnas_prefix"),
        (("attention=dnas", "attention.prior.encoder=[t5]"), "dnas_prior-encoder-t5"),
        (("attention.prior.decoder=[t5,alibi]",), "softmax_prior-decoder-t5+alibi"),
        (("attention.scorer.cross=dot",), "softmax_scorer-cross-dot"),
        (("attention.encoder=attnorm.attention.normalizers.dnas:DNAS",), "DNAS"),
    ],
)
def test_runs_are_filed_under_what_was_resolved(changes, label):
    assert runs.tiny(*changes).label == label
    folder = runs.folder_of(*changes)
    assert folder.startswith(f"logs/gigaword/{label}/")
    assert "=" not in folder


@pytest.mark.parametrize(
    ("steps", "epochs", "task", "expected"),
    [("null", "null", 7, 7), (3, -1, 7, 3), ("null", 2, 7, None), (3, 2, 7, 3), (9, "null", 7, 9), (-1, -1, 7, 7)],
)
def test_the_tasks_limit_counts_only_where_the_trainer_has_none(steps, epochs, task, expected):
    limits = (f"trainer.max_steps={steps}", f"trainer.max_epochs={epochs}", f"task.max_steps={task}")
    assert runs.tiny(*limits).max_steps == expected


# what takes effect in a run


BARE = ("~callbacks.progress", "~callbacks.learned_scalars", "~callbacks.attention_stats", "~callbacks.early_stopping")


class Counter(pl.Callback):
    """Writes how many batches of a run it has seen."""

    def __init__(self, run_folder, file):
        self.file, self.batches = run_folder / file, 0

    def on_train_batch_end(self, *_):
        self.batches += 1

    def on_train_end(self, *_):
        self.file.write_text(str(self.batches))


@pytest.mark.slow
def test_a_share_of_an_epoch_between_validations_is_kept(tmp_path):
    typed = ("data.train_size=80", "task.rouge_pairs=0", "trainer.max_epochs=2", "trainer.val_check_interval=0.25")
    summary = runs.tiny_run(tmp_path, *typed)
    quarter = summary["steps"] // 8
    assert summary["epochs"] == 2 and summary["steps"] == 8 * quarter
    assert list(runs.logged(tmp_path, "val/loss")) == list(range(quarter, 8 * quarter + 1, quarter))


ADDED = f"+callbacks.mine={{_target_: {__name__}.Counter, file: batches}}"
IN_PLACE = f"callbacks.progress._target_={__name__}.Counter", "+callbacks.progress.file=batches"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "batches"),
    [
        ((ADDED, "~callbacks.progress", "trainer.accumulate_grad_batches=3"), "6"),
        ((ADDED, "callbacks.progress=null"), "2"),
        ((*IN_PLACE, "~callbacks.progress.bar", "~callbacks.progress.samples"), "2"),
    ],
)
def test_a_callback_is_added_and_another_is_removed_or_replaced(tmp_path, capsys, typed, batches):
    runs.tiny_run(tmp_path, *typed, "task.max_steps=2")
    assert (tmp_path / "batches").read_text() == batches
    assert not (tmp_path / "samples/step_000001.txt").exists() and "val loss" not in capsys.readouterr().out


AVERAGED = "++callbacks.ema._target_=pytorch_lightning.callbacks.EMAWeightAveraging", "++callbacks.ema.decay=0.5"
STOPPED_TWICE = [f"++callbacks.{name}._target_=pytorch_lightning.callbacks.EarlyStopping" for name in "ab"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), AVERAGED, STOPPED_TWICE], ids=["bare", "averaged", "stopped twice"])
def test_checkpoints_random_streams_and_signals_need_no_callback_of_the_configuration(monkeypatch, tmp_path, more):
    """With dropout, a run can only be resumed exactly if the state of its random streams was saved."""
    typed = (*BARE, *more, "model.dropout=0.5", "task.max_steps=6", "task.rouge_pairs=0")
    runs.tiny_run(tmp_path / "straight", *typed)
    runs.stopped(monkeypatch, tmp_path / "first", 3, *typed)
    assert runs.load(tmp_path / "first")["global_step"] == 3
    runs.tiny_run(tmp_path / "second", *typed, f"ckpt_path={tmp_path}/first/checkpoints/last.ckpt")
    assert runs.different_ends(tmp_path / "straight", tmp_path / "second") == []


def test_a_class_that_is_typed_does_not_get_the_defaults_of_the_class_that_it_replaces():
    typed = ("optimizer._target_=torch.optim.Adagrad", "scheduler._target_=torch.optim.lr_scheduler.StepLR")
    config = runs.tiny(*typed, "+scheduler.step_size=3")
    assert config["optimizer"] == {
        **{"_target_": "torch.optim.Adagrad", "_partial_": True, "lr": 0.01, "weight_decay": 0.01},
        **{"eps": 1e-8, "hybrid_lr_factor": 10.0},
    }
    assert config["scheduler"] == {**{"_target_": "torch.optim.lr_scheduler.StepLR", "_partial_": True, "step_size": 3}}
    [problem] = refused(*typed, "+scheduler.step_size=3", "optimizer.betas=[0.9,0.99]")
    assert problem.startswith("optimizer.betas=[0.9,0.99]: Adagrad has no such option")


@pytest.mark.parametrize(
    ("options", "watched"),
    [
        ({}, ("val/rougeL", "max")),
        ({"monitor": "val/loss"}, ("val/loss", "min")),
        ({"monitor": "val/loss", "mode": "max"}, ("val/loss", "max")),
        ({"monitor": "mine", "mode": "max"}, ("mine", "max")),
    ],
)
@pytest.mark.parametrize("name", ["ModelCheckpoint", "EarlyStopping"])
def test_a_callback_gets_the_direction_of_the_metric_that_it_watches(name, options, watched):
    """Whatever metric selects the best model."""
    directions = {"val/loss": "min", "val/rougeL": "max"}
    part = Part(getattr(pl.callbacks, name), options)
    [callback] = build_entries({"it": part}, directions, run_folder=Path(), monitor="val/rougeL")
    assert (callback.monitor, callback.mode) == watched
    [finder] = build_entries({"it": Part(pl.callbacks.BatchSizeFinder, {})}, directions, run_folder=Path(), monitor="")
    assert finder._mode == "power"  # not a direction


STOPPING = "+callbacks.it={_target_: pytorch_lightning.callbacks.EarlyStopping, monitor: NAME}"
NO_METRIC = "allowed: val/loss, val/perplexity, val/rouge1, val/rouge2, val/rougeL"


def test_a_precision_without_a_scaler_is_refused():
    [problem] = refused("trainer.precision=16-true")
    assert (
        problem == "trainer.precision=16-true: diverges, since nothing scales its gradients; use 16-mixed or bf16-true"
    )


def test_an_option_that_excludes_the_fused_kernel_may_be_typed():
    config = runs.tiny("+optimizer.foreach=true")
    built = config.optimization.build(torch.nn.Linear(2, 2), 3, fused=True)["optimizer"]
    assert built.defaults["foreach"] and not built.defaults["fused"]


TORCHS = ("~scheduler.decay", "~scheduler.warmup", "~scheduler.min_lr_ratio")
PLATEAU = "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau"


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ((PLATEAU, "+scheduler.monitor=val/los"), f"scheduler.monitor=val/los: {NO_METRIC}"),
        ((PLATEAU, "+scheduler.monitor=train/loss"), f"scheduler.monitor=train/loss: {NO_METRIC}"),
        (("+scheduler.monitor=val/loss",), "scheduler.monitor=val/loss: warmup_decay watches no metric"),
        (
            (PLATEAU, "+scheduler.interval=step"),
            "scheduler.interval=step: has no effect, since ReduceLROnPlateau steps after validations",
        ),
        ((STOPPING.replace("NAME", "val_loss"),), f"callbacks.it.monitor=val_loss: {NO_METRIC}, train/loss"),
        (
            (STOPPING.replace("NAME", "val/rougeL"), "task.rouge_pairs=0"),
            "callbacks.it.monitor=val/rougeL: allowed: val/loss, val/perplexity, train/loss",
        ),
        (
            (STOPPING.replace("NAME", "mine"), ADDED),
            "callbacks.it.mode: must be given, min or max, as only you know which mine is best",
        ),
        ((STOPPING.replace("}", ", mode: max}").replace("NAME", "mine"), ADDED), None),
        ((STOPPING.replace("NAME", "train/loss"), PLATEAU, "+scheduler.monitor=val/rougeL"), None),
    ],
)
def test_a_metric_that_no_run_has_is_refused_before_the_data(typed, problem):
    typed = (*TORCHS, *typed) if PLATEAU in typed else typed
    if problem is None:
        runs.tiny(*typed)
    else:
        [said] = refused(*typed)
        assert said.startswith(problem)


@pytest.mark.parametrize("name", ["LBFGS", "Muon", "SparseAdam"])  # no groups, no biases, no dense gradients
def test_an_optimizer_that_cannot_train_the_groups_of_a_run_is_refused(name):
    [problem] = refused(f"optimizer._target_=torch.optim.{name}")
    assert problem.startswith(f"optimizer._target_: {name} cannot train the parameter groups of a run")


@pytest.mark.slow
def test_a_scheduler_of_torch_gets_the_number_of_updates(tmp_path):
    one_cycle = ("scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "+scheduler.max_lr=0.01")
    assert runs.tiny_run(tmp_path, *one_cycle, "task.max_steps=6")["state"] == "finished"
    [state] = runs.load(tmp_path)["lr_schedulers"]
    assert (state["total_steps"], state["last_epoch"]) == (6, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "halved", "mode"),
    [((), 3, "max"), (("+scheduler.frequency=2", "+scheduler.monitor=val/loss"), 1, "min")],
)
def test_a_scheduler_that_watches_a_metric_lowers_the_rate_when_it_does_not_improve(tmp_path, more, halved, mode):
    """By the metric of each validation, or of every second one, once."""
    still = ("optimizer.lr=1.0e-30", "+scheduler.patience=0", "+scheduler.factor=0.5", "+scheduler.eps=0")
    typed = (*TORCHS, PLATEAU, *still, "task.validations=4", "task.max_steps=8", "task.monitor=rougeL", *more)
    assert runs.tiny_run(tmp_path, *typed)["state"] == "finished"
    checkpoint = runs.load(tmp_path)
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(1e-30 / 2**halved)
    assert checkpoint["lr_schedulers"][0]["mode"] == mode


MCAN, NO_EFFECT = "model=mcan_small", "has no effect with these settings; it is for"
UNMASKED = "needs masked_positions, which the model of this task does not provide; use task=mlm"
REFUSED = {  # of each task, what is typed and the problem that is said
    "classify": {
        "data.labels=[no]": "data.labels=['no']: must have at least two names",
        "data.labels=[no,no]": "data.labels: repeated names: no",
        "data.validation=null": "data.validation=null",
        "data.train=nowhere.csv": "data.train=nowhere.csv: ",
        "data.batch_tokens=50": "data.batch_tokens=50: must be at least 64, the tokens of the longest",
    },
    "squad": {
        "attention.prior={encoder:[unmasked]}": UNMASKED,
        "task.max_query=61": "task.max_query=61: with [CLS] and two [SEP], it leaves no token of model.max_source=64",
        "task.stride=46": "task.stride=46: must be at most 45 (model.max_source=64 - task.max_query=16 - 3)",
        "task.n_best=0": "task.n_best=0: allowed: whole numbers from 1",
        "task.null_threshold=null": "task.null_threshold=null: allowed: numbers",
        "task.null_threshold=2": "task.null_threshold=2: has no effect without task.no_answer=true",
        "tokenizer=sentencepiece": f"tokenizer._target_={runs.SENTENCEPIECE}: does not return the character offsets",
        "data.validation=null": "data.validation=null",
        "data.batch_tokens=50": "data.batch_tokens=50: must be at least 64, the tokens of the longest",
    },
    "mlm": {
        "tokenizer=sentencepiece": f"tokenizer._target_={runs.SENTENCEPIECE}: has no mask token",
        "task.mask_prob=0": "task.mask_prob=0: allowed: numbers above 0",
        "task.keep_prob=0.6 task.random_prob=0.6": "task.keep_prob=0.6, random_prob=0.6: more than 1 together",
        "task.span_weights=[0,0]": "task.span_weights=[0.0, 0.0]: at least one must be above 0",
        "model.max_source=2000": "data.batch_tokens=1000: must be at least 2000, the tokens of the longest",
        "attention.encoder=[dnas,softmax]": "attention.encoder: 2 normalizers for 1 layer",
    },
    "document_classification": {
        "data.batch_tokens=10": "data.batch_tokens=10: must be at least 64, the tokens of a document",
        "model.d_model=18 model.n_heads=4": "model.d_model=18: not a multiple of model.n_heads",
        "model.d_model=17 model.n_heads=1": "model.d_model=17: must be even, half for each direction of a GRU",
        "data.validation=[9]": "data.validation=[9]: allowed: numbers from 0 to 7",
        "data.words=0": "data.words=0: allowed: whole numbers from 1",
        "data.folder=nowhere": "data.folder=nowhere: no such folder",
        "attention.sentences=dnas": "attention.sentences: the model has no such site; it has word, sentence",
    },
    "causal_lm": {
        "data.batch_tokens=10": "data.batch_tokens=10: must be at least 16, the tokens of the longest",
        "attention=dnas": "leak the future at the autoregressive sites",
        "decoding.top_p=0": "decoding.top_p=0: allowed: numbers above 0",
    },
    "image_classification": {
        "model.patch=3": "model.patch=3: must divide the size of the images, 8 x 8 pixels",
        "data.batch_tokens=10": "data.batch_tokens=10: must be at least 16, the patches of an image",
        "model.query_grid=[2]": "model.query_grid=[2]: allowed",
        "model.positions=sinusoidal": "model.positions=sinusoidal: allowed: learned, none",
        "data.validation=0": "data.validation=0: the validation split is asked for",
    },
    "captioning": {
        **{f"attention.cross={name}": f"attention.cross={name}" for name in ("dnas", "hnas", "sinkhorn")},
        "decoding.max_length=40": "decoding.max_length=40: must be below model.max_target=32",
        "data._target_=attnorm.data.sources.scenes.Scenes": "data=caption_files",
    },
    "vqa": {
        "model.fusion=all": "model.fusion=all: allowed: none, single, concat, attention",
        "model.fusion={a:1}": "model.fusion={a:1}: allowed: none, single, concat, attention",
        "model.question=lstm": "model.question=lstm: allowed: gru, transformer",
        "model.fusion_heads=3": "model.fusion_heads=3: must divide d_model=16",
        "data.batch_tokens=15": "data.batch_tokens=15: must be at least 16, the tokens of the longest",
        "task.min_count=0": "task.min_count=0: allowed: ",
        "data._target_=attnorm.data.sources.newswire.Newswire": "data",
        "model._target_=attnorm.models.encoder.Encoder": "but this task trains models with 'vqa'; use model=mcan_small",
        "task._target_=attnorm.tasks.squad.task.SquadTask": "but this task needs questions; use data=squad",
        **{
            f"{typed} attention.fusion=dnas": "attention.fusion: the model has no such site; it has "
            for typed in (
                *(f"model.fusion={name}" for name in ("single", "concat", "none")),
                f"{MCAN} model.fusion=none",
            )
        },
        "model.layers=3": f"model.layers=3: {NO_EFFECT} model.question=transformer or model=mcan_small",
        "model.norm_first=true": f"model.norm_first=true: {NO_EFFECT} model.question=transformer or model=mcan_small",
        "model.fusion=concat model.fusion_heads=2": f"model.fusion_heads=2: {NO_EFFECT} model.fusion=attention",
        "model.fusion=none model.geometry=false": f"{NO_EFFECT} model.fusion=single, concat or attention",
    },
    "vqa_v2": {"model.fusion=concat": "model.fusion=concat: ignored: the data fix it at none"},
    "translation": {
        "decoding.fertility=1 attention.cross=entmax": "entmax has no form with fertility",
        "decoding.fertility=0": "decoding.fertility",
        "decoding.max_length=64": "decoding.max_length",
        "task.detokenize=english": "task.detokenize=english: allowed: auto or the two-letter code of a language",
        "data=newswire": "data",
    },
    "translation_lstm": {
        "attention.cross=dnas": "couples queries and would leak the future",
        "attention=hnas": "hnas_prefix",
        "model.d_model=15": "model.d_model=15: must be even",
    },
    "gigaword": {
        "attention.prior={encoder:[unmasked]}": UNMASKED,
        "data.prefetch_factor=4": "data.prefetch_factor=4: has no effect",
        "data.prefetch_factor=0 data.num_workers=1": "data.prefetch_factor=0: allowed",
    },
}


@pytest.mark.parametrize(
    ("task", "typed", "problem"), [(task, *case) for task, cases in REFUSED.items() for case in cases.items()]
)
def test_what_a_task_cannot_be_trained_with_is_said(task, typed, problem):
    with pytest.raises(ConfigError) as caught:
        runs.tiny(*typed.split(), task=task)
    assert any(problem in text for text in caught.value.problems)
    assert len(caught.value.problems) == 1 or "_target_" in typed
