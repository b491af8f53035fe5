"""attention.options.<name>.fixed=<run folder>: a new run gets the shares that another one had learned at its end."""

import pytest
import runs
import yaml

from attnorm.analysis.figures import draw_run
from attnorm.errors import ConfigError
from attnorm.models.vqa.mcan import MCAN
from attnorm.run.fixed_shares import learned_shares
from attnorm.run.run import Run
from attnorm.run.tables import COLUMNS, CsvTable

HYBRID = {"encoder/0": {"": (0.5, 0.25)}, "encoder/2": {0: (0.5, 0.75), 1: (0.5, 1.0)}, "decoder/1/cross": {"": (0, 1)}}
SOFTMAX = {"encoder/0": {"": (0.5, 0.3)}, "encoder/1": {"": (0.5, 0.9)}}
DNAS = {"encoder/0": {"": (0.5, 0.7)}, "encoder/1": {"": (0.5, 0.1)}}
MEMBERS = {"members": ["softmax", "dnas"]}


def run_with(folder, attention, **scalars):
    """A run folder with these attention tables and learned scalars: layer -> head -> values at updates 9 and 10."""
    folder.mkdir()
    attention = {"prior": {}, "scorer": {}, "options": {}, **attention}
    groups = {"task": {"name": "mlm"}, "model": {}, "data": {}, "optimizer": {"lr": 0.1}}
    settings = {"attention": attention, "seed": 1, **groups}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    for name, layers in scalars.items():
        table = CsvTable(folder / f"{name}.csv")
        for place, step in enumerate((9, 10)):
            for layer, heads in layers.items():
                for head, values in heads.items():
                    table.append(dict(zip(COLUMNS, (step, layer, head, values[place]), strict=True)))
    return folder


@pytest.fixture
def hybrid_run(tmp_path):
    tables = {"encoder": ["hnas", "softmax", "hnas"], "decoder": "softmax", "cross": ["softmax", "hnas_prefix"]}
    return run_with(tmp_path / "hybrid", tables, hybrid_weights=HYBRID)


@pytest.fixture
def mixed_run(tmp_path):
    tables = {"encoder": "mix", "options": {"mix": MEMBERS}}
    return run_with(tmp_path / "mixed", tables, mix_dnas=DNAS, mix_softmax=SOFTMAX)


def test_each_layer_has_the_shares_of_the_last_update(hybrid_run, mixed_run):
    assert learned_shares(Run(hybrid_run), "hnas", {}) == {"encoder": [0.25, None, [0.75, 1.0]]}
    assert learned_shares(Run(hybrid_run), "hnas_prefix", {}) == {"cross": [None, 1.0]}
    assert learned_shares(Run(mixed_run), "mix", MEMBERS) == {
        "encoder": [[0.3, 0.7], [0.9, 0.1]]  # in the order of members
    }


def test_members_that_nobody_typed_are_those_of_the_normalizer(tmp_path):
    shares = {member: {"encoder/0": {"": (0, 0.25)}} for member in ("mix_softmax", "mix_dnas", "mix_sinkhorn")}
    run = run_with(tmp_path / "run", {"encoder": "mix"}, **shares)
    assert learned_shares(Run(run), "mix", {}) == {"encoder": [[0.25, 0.25, 0.25]]}
    with pytest.raises(ValueError, match="the run mixes mix_softmax, mix_dnas, mix_sinkhorn, but this one"):
        learned_shares(Run(run), "mix", MEMBERS)


@pytest.mark.slow
def test_the_numbers_are_what_a_run_records_and_another_folder_is_refused(mixed_run):
    typed = ("attention=mix", "attention.options.mix.members=[softmax,dnas]", "model.encoder_layers=2")
    typed = (*runs.tiny_overrides("mlm"), *typed, f"+attention.options.mix.fixed={mixed_run}")
    cfg = runs.checked(runs.composed(*typed), overrides=typed)
    assert cfg["attention"]["options"]["mix"]["fixed"] == {"encoder": [[0.3, 0.7], [0.9, 0.1]]}
    assert cfg.label == "mix"
    with pytest.raises(ConfigError, match=f"^attention.options.hnas.fixed={mixed_run.parent}: no config.yaml there"):
        typed = ("attention=hnas", f"+attention.options.hnas.fixed={mixed_run.parent}")
        runs.checked(runs.composed(*runs.tiny_overrides("mlm"), *typed))


@pytest.mark.slow
def test_values_per_head_are_as_many_as_the_heads_of_the_site():
    typed = (*runs.tiny_overrides("mlm"), "attention=hnas", "+attention.options.hnas.fixed=[0.1,0.2,0.3]")
    with pytest.raises(ConfigError, match=r"attention.options.hnas.fixed: .*: 3 values for 2 heads"):
        runs.checked(runs.composed(*typed, "model.n_heads=2"))
    settings = {"fusion": "attention", "n_heads": 4, "fusion_heads": 1}
    assert MCAN.site_heads(settings) == {"fusion": 1, "encoder": 4, "guided": 4}
    assert MCAN.site_heads({}).keys() == MCAN.sites_of({}).keys()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("hnas", {}, "has no learned shares of hnas"),
        ("mix", {"members": ["softmax", 3]}, "3 is neither a name nor"),
        ("mix", {}, "but this one mixes mix_softmax, mix_dnas, mix_sinkhorn"),
        ("mix", {"members": ["dnas", "softmax"]}, "the run mixes mix_softmax, mix_dnas"),
        ("mix", {"members": ["softmax", "dnas", "entmax"]}, "but this one mixes mix_softmax, mix_dnas, mix_entmax"),
    ],
)
def test_a_run_without_these_shares_is_refused(mixed_run, name, options, words):
    with pytest.raises(ValueError, match=words):
        learned_shares(Run(mixed_run), name, options)


def test_a_member_with_other_options_is_another_member(tmp_path):
    shares = {member: {"encoder/0": {"": (0, 0.5)}} for member in ("mix_softmax", "mix_sinkhorn")}
    run = run_with(tmp_path / "run", {"encoder": "mix", "options": {"mix": five_steps()}}, **shares)
    assert learned_shares(Run(run), "mix", five_steps()) == {"encoder": [[0.5, 0.5]]}
    with pytest.raises(ValueError, match=r"the run mixes .*'n_iters': 5.*, but this one mixes {'name': 'sinkhorn'}"):
        learned_shares(Run(run), "mix", {"members": ["softmax", "sinkhorn"]})


def five_steps():
    return {"members": [{"name": "softmax"}, {"name": "sinkhorn", "n_iters": 5}]}


def test_two_attentions_of_one_layer_cannot_share_a_value(tmp_path):
    both = {layer: {"": (0.5, 0.3)} for layer in ("guided/0", "guided/0/cross")}
    run = run_with(tmp_path / "run", {"guided": "hnas"}, hybrid_weights=both)
    with pytest.raises(ValueError, match="several attentions of one layer at guided"):
        learned_shares(Run(run), "hnas", {})


@pytest.mark.slow
def test_the_shares_of_a_mix_are_drawn_in_one_figure(hybrid_run, mixed_run):
    assert draw_run(mixed_run) == [mixed_run / "figures" / "mix.png"]
    assert draw_run(hybrid_run) == [hybrid_run / "figures" / "hybrid_weights.png"]
