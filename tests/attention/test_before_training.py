"""Before training: a user's class that ignores a mask, gives NaN or sees the future is refused under its key."""

import sys

import pytest
import runs
import torch
from torch import nn

from attnorm.attention import Normalizer
from attnorm.attention.masking import dense_mask
from attnorm.attention.model_sites import Sites
from attnorm.attention.normalizers.base import add_log_prior, masked_scores, softmax_over_keys, upcast
from attnorm.attention.testing.before_training import problems_before_training
from attnorm.attention.testing.check import PROPERTIES
from attnorm.errors import ConfigError

pytestmark = pytest.mark.numerical

SITES = {"encoder": False, "decoder": True, "cross": True}
HEADS = dict.fromkeys(SITES, 4)
MODULE = __name__


class Sound(Normalizer):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return softmax_over_keys(add_log_prior(masked_scores(scores, mask), log_prior)).to(scores.dtype)


class NoMask(Normalizer):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return add_log_prior(upcast(scores), log_prior).softmax(-1).to(scores.dtype)


class OnlyPadding(Sound):
    """Forgets that a Mask may be causal."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        allowed = None if not hasattr(mask, "keys") or mask.keys is None else mask.keys[:, None, None, :]
        return super().forward(scores, allowed if hasattr(mask, "keys") else mask, log_prior=log_prior)


class WrongWayRound(Sound):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        allowed = dense_mask(mask, scores)
        return super().forward(scores, None if allowed is None else ~allowed, log_prior=log_prior)


class NaNOnDeadRows(Sound):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return add_log_prior(masked_scores(scores, mask), log_prior).softmax(-1).to(scores.dtype)


class NaNInTheGradientOfThePrior(Sound):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return add_log_prior(masked_scores(scores, mask), log_prior).softmax(-1).nan_to_num(0.0).to(scores.dtype)


class SeesTheFuture(Sound):
    """Masked pairs have weight 0, but the temperature of a row is a mean over all of its scores."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return super().forward(scores * scores.mean(-1, keepdim=True).sigmoid(), mask, log_prior=log_prior)


class AttendLeaks(Sound):
    def attend(self, q, k, v, mask=None, *, log_prior=None, scale=None):
        out = super().attend(q, k, v, mask, log_prior=log_prior, scale=scale)
        live = dense_mask(mask, q @ k.mT).expand(*q.shape[:-1], k.shape[-2]).any(-1, keepdim=True)
        return out + 0.1 * v.mean(-2, keepdim=True) * live


class WrongWithTheOption(Sound):
    def __init__(self, heads: int, forget: bool = False):
        super().__init__()
        self.forget, self.temperature = forget, nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        mask = None if self.forget else mask
        return super().forward(upcast(scores) * self.temperature, mask, log_prior=log_prior).to(scores.dtype)


class ForFourKeys(Sound):
    def __init__(self):
        super().__init__()
        self.offsets = nn.Parameter(torch.zeros(4))

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return super().forward(scores + self.offsets, mask, log_prior=log_prior)


def problems(*, sites=SITES, **tables):
    return list(problems_before_training(Sites(tables, sites, heads=HEADS)))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (NoMask, "masked_entries_are_zero"),
        (OnlyPadding, "masked_entries_are_zero"),
        (WrongWayRound, "masked_entries_are_zero"),
        (NaNOnDeadRows, "dead_rows_give_zero"),
        (SeesTheFuture, "no_leak_in_causal_use"),
        (AttendLeaks, "no_leak_in_causal_use"),
    ],
)
def test_a_wrong_class_is_one_problem_that_names_the_key_and_the_property(wrong, name):
    path = f"{MODULE}:{wrong.__name__}"
    [problem] = problems(_default_="softmax", decoder=path, cross=path)
    assert problem.key == "attention.decoder"
    assert problem.startswith(f"attention.decoder={path}: {name} does not hold")
    assert problem.endswith(f"For all properties, type attnorm check {path}")
    [problem] = problems(_default_=path)
    assert problem.key == "attention._default_" and name in problem


def test_the_properties_are_those_of_check_normalizer(monkeypatch):
    """Replacing a property of `check_normalizer` changes what is tried before training."""
    from attnorm.attention.testing.report import Failure

    def fails(subject):
        raise Failure("of course")

    assert not problems(_default_=f"{MODULE}:Sound")
    monkeypatch.setitem(PROPERTIES, "dead_rows_give_zero", fails)
    [problem] = problems(_default_=f"{MODULE}:Sound")
    assert "dead_rows_give_zero" in problem and "of course" in problem


def test_the_future_is_no_concern_of_a_site_that_is_not_autoregressive():
    assert not problems(_default_="softmax", encoder=f"{MODULE}:SeesTheFuture")


def test_an_attend_that_is_not_forward_is_refused_at_every_site():
    [problem] = problems(_default_="softmax", encoder=f"{MODULE}:AttendLeaks")
    assert "attend_equals_forward_times_values does not hold" in problem


def test_a_class_is_tried_with_the_options_and_the_heads_of_its_site():
    tables = {"_default_": "softmax", "decoder": f"{MODULE}:WrongWithTheOption"}
    assert not problems(**tables)
    [problem] = problems(**tables, options={"WrongWithTheOption": {"forget": True}})
    assert "masked_entries_are_zero" in problem
    assert problem.endswith(f" attnorm check {MODULE}:WrongWithTheOption options.forget=true")


def test_a_class_is_tried_with_a_prior_where_its_site_has_one():
    tables = {"_default_": "softmax", "decoder": f"{MODULE}:NaNInTheGradientOfThePrior"}
    assert not problems(**tables, prior={"encoder": ["t5"]})
    [problem] = problems(**tables, prior={"decoder": ["t5"]})
    assert "dead_rows_give_zero" in problem and "by log_prior" in problem


def test_a_wrong_class_in_a_list_or_inside_a_mix_is_seen():
    [problem] = problems(_default_="softmax", encoder=["softmax", f"{MODULE}:NoMask"])
    assert problem.key == "attention.encoder"
    [problem] = problems(_default_="mix", options={"mix": {"members": ["softmax", f"{MODULE}:NoMask"]}})
    assert problem.startswith("attention._default_=mix: masked_entries_are_zero")


def test_classes_of_attnorm_are_not_tried(monkeypatch):
    monkeypatch.setattr("attnorm.attention.testing.before_training.first_failure", lambda *_: 1 / 0)
    assert not problems(_default_="hnas", cross="attnorm.attention.normalizers.entmax:Sparsemax", decoder="mix")


def test_a_class_that_raises_on_the_small_inputs_is_not_refused(caplog):
    assert not problems(_default_="softmax", encoder=f"{MODULE}:ForFourKeys")
    assert "ForFourKeys: not checked before training, because it raised RuntimeError" in caplog.text


def test_the_check_leaves_the_random_numbers_of_the_run_alone():
    expected = torch.random.get_rng_state()
    problems(_default_=f"{MODULE}:Sound")
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_the_check_makes_few_calls(monkeypatch):
    """About 30 ms: some sixty calls of a softmax on a few positions."""
    calls = []
    forward = Sound.forward
    monkeypatch.setattr(Sound, "forward", lambda self, *args, **given: calls.append(1) or forward(self, *args, **given))
    assert not problems(_default_=f"{MODULE}:Sound", prior={"encoder": ["t5"], "decoder": ["t5"]})
    assert 20 < len(calls) < 100


def test_training_is_refused_before_any_data_is_read(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "my_wrong_one", sys.modules[MODULE])
    with pytest.raises(ConfigError) as caught:
        runs.tiny("attention.encoder=my_wrong_one:NoMask")
    [problem] = caught.value.problems
    assert problem.startswith("attention.encoder=my_wrong_one:NoMask: masked_entries_are_zero does not hold")
    assert runs.tiny("attention.decoder=my_wrong_one:Sound")["attention"]["decoder"] == "my_wrong_one:Sound"
