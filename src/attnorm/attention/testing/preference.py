"""What log u means: a preference that multiplies the weights, or at least changes them."""

from dataclasses import replace

import torch

from attnorm.attention.testing.cases import PRIORS, Subject
from attnorm.attention.testing.report import Failure, Skip, bounds_of, expect, expect_row_sums, finite


def a_key_prior_changes_the_weights(subject: Subject) -> None:
    """preferring some keys changes the weights and what `attend` returns"""
    if subject.normalizer.total == 0:
        raise Skip("declared total = 0: all weights are 0")
    for case in subject.cases(("key", "pairwise"), only="no mask"):
        if case.shape[-1] < 5:
            continue  # few keys may leave no choice, such as with bounds on the weights
        assert case.log_prior is not None
        case = replace(case, log_prior=3 * case.log_prior)
        plain = replace(case, log_prior=None)
        for name, call in (("weights", subject.weights), ("attend", subject.attend)):
            moved = (call(case) - call(plain)).abs().max()
            if not moved > 1e-3:
                raise Failure(
                    f"{case}\n{name}: log_prior is ignored: a strong preference (log u = 3 times a normal number) "
                    f"moved nothing by more than {moved:.1e}"
                )


def a_row_constant_prior_changes_nothing(subject: Subject) -> None:
    """u counts up to a factor (per row, if so declared): the same prior for all keys of a query changes nothing"""
    smallest, largest = bounds_of(subject.normalizer.total)
    if smallest < largest and not subject.normalizer.prior_scale_invariant:
        raise Skip("declared prior_scale_invariant = False, and a `total` that leaves the sum of a row open")
    for case in subject.cases():
        shift = 3 * subject.randn(*case.shape[:3], 1, salt=770)
        same = torch.full_like(shift[:1, :1, :1], 100.0)
        for prior in [shift, same] if subject.normalizer.prior_scale_invariant else [same]:
            preferring = replace(case, log_prior=prior)
            what = f"{case}\nlog_prior of shape {tuple(prior.shape)}, the same for all keys"
            expect(subject.weights(preferring), subject.weights(case), "weights", what)
            expect(subject.attend(preferring), subject.attend(case), "attend", what)


def the_prior_multiplies_the_weights(subject: Subject) -> None:
    """along each row the weights under u are proportional to u times those without it"""
    if not subject.normalizer.proportional_to_prior:
        raise Skip("declared proportional_to_prior = False")
    for case in subject.cases(("key", "pairwise")):
        assert case.log_prior is not None
        product = case.log_prior.exp() * subject.weights(replace(case, log_prior=None))
        sums = product.sum(-1, keepdim=True)
        w = subject.weights(case)
        expected = w.sum(-1, keepdim=True) * product / torch.where(sums == 0, 1.0, sums)
        expect(w, expected, "weights", case)


def no_prior_no_weight(subject: Subject) -> None:
    """log_prior = -inf at a key gives it weight 0 beside any mask; a row left without mass is 0, never NaN"""
    if subject.normalizer.needs_keys:
        raise Skip("declared needs_keys: a formula on the keys may give weight to those outside of the prior")
    for case in subject.cases(PRIORS[1:]):
        assert case.log_prior is not None
        u = case.log_prior.expand(case.shape)
        holes = subject.randn(*case.shape, salt=780) < -0.3
        case = replace(case, name=f"{case.name} with -inf at 4 of 10 pairs", log_prior=u.masked_fill(holes, -torch.inf))
        case = replace(case, own_scores=case.scores).leaves()
        w, open_pairs = subject.weights(case), case.allowed & ~holes
        finite(w, "weights", case)
        expect(w * ~open_pairs, torch.zeros_like(w), "weights without prior or masked", case, atol=0)
        expect_row_sums(w, subject.normalizer.total, open_pairs.any(-1), case)
        out = subject.attend(replace(case, own_scores=None))
        finite(out, "attend", case)
        for of, gradient in subject.gradients(w, case).items():
            finite(gradient, f"gradient of the weights by {of}", case)


def keys_are_used_only_if_declared(subject: Subject) -> None:
    """without needs_keys, `keys` and `scale` given to forward change nothing: scores come scaled"""
    if subject.normalizer.needs_keys:
        raise Skip("declared needs_keys")
    for case in subject.cases(("no", "key")):
        with_keys = subject.weights(case, keys=case.k, scale=0.1)
        expect(with_keys, subject.weights(case), "weights", f"{case}\nkeys and scale given to forward")


def features_are_those_of_single_positions(subject: Subject) -> None:
    """with needs_states, `features` gives (B, H, L, F), each from the state of its own position, and they are used"""
    normalizer, module = subject.normalizer, subject.module()
    if normalizer.needs_states == "none":
        raise Skip('declared needs_states = "none"')
    if normalizer.needs_states not in ("queries", "keys"):
        raise Failure(f"needs_states={normalizer.needs_states!r}: allowed: 'none', 'queries', 'keys'")
    used = False
    for case in subject.cases(only="no mask"):
        assert case.states is not None
        whole, length = module.features_of(case.states), case.states.shape[1]
        if whole.shape[:3] != (*case.shape[:2], length):
            raise Failure(
                f"{case}\nfeatures: expected the shape {(*case.shape[:2], length, 'F')}, got {tuple(whole.shape)}"
            )
        for position in range(length):
            one = module.features_of(case.states[:, position : position + 1])
            expect(one, whole[:, :, position : position + 1], "features", f"{case}\nof the state {position} alone")
        other = replace(case, states=2 * case.states.roll(1, 1) + 1)
        used = used or not torch.allclose(subject.weights(other), subject.weights(case), atol=1e-6)
    if not used:
        raise Failure("other states changed no weight; declare needs_states = 'none'")


PROPERTIES = [
    a_key_prior_changes_the_weights,
    a_row_constant_prior_changes_nothing,
    the_prior_multiplies_the_weights,
    no_prior_no_weight,
    keys_are_used_only_if_declared,
    features_are_those_of_single_positions,
]
