"""Properties of the weights of each row, and what a mask means."""

from collections.abc import Callable
from dataclasses import replace

import torch

from attnorm.attention.masking import Mask
from attnorm.attention.testing.cases import PRIORS, WIDTH, Case, Subject
from attnorm.attention.testing.report import Failure, Skip, bounds_of, expect, expect_row_sums, finite


def rows_sum_to_total(subject: Subject) -> None:
    """every row with an allowed key sums to the declared `total`"""
    check_remainder(subject)
    if subject.normalizer.total is None:
        raise Skip("declared total = None")
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-5)):
        for case in subject.cases(PRIORS, dtype):
            live = case.allowed.any(-1)
            try:
                expect_row_sums(subject.weights(case), subject.normalizer.total, live, case, atol=tolerance)
            except Failure as failure:
                raise Failure(f"{failure}{fitting_total(subject)}") from failure


def check_remainder(subject: Subject) -> None:
    """Failure if there is a `remainder_value` that is not one per head, or that gets a negative weight."""
    if (value := subject.module().remainder_value()) is None:
        return
    smallest, largest = bounds_of(subject.normalizer.total)
    if smallest < 0 or largest > 1:
        raise Failure(f"has a remainder_value, and total={subject.normalizer.total}: declare a total of at most 1")
    if value.shape != (shape := (subject.heads, WIDTH)):
        raise Failure(f"remainder_value: expected the shape {shape}, got {tuple(value.shape)}")


def fitting_total(subject: Subject) -> str:
    """What a class can declare as its `total`, if the sums of its rows are intended. "" if no value would fit."""
    weights = [(subject.weights(case), case.allowed.any(-1)) for case in subject.cases(PRIORS)]
    smallest = min(float(w.detach().min()) for w, _ in weights)
    sums = torch.cat([w.detach().sum(-1)[live.expand(w.shape[:-1])] for w, live in weights])
    if not sums.isfinite().all():
        return ""
    low, high = float(sums.min()), float(sums.max())
    if smallest < 0:
        total = "None, because some weights are negative"
    elif high - low <= 1e-6:
        total = f"{high:.6g}"
    elif high <= 1 + 1e-6:
        total = "AT_MOST_ONE (import it from attnorm.attention.normalizers.base)"
    else:
        total = '(0.0, float("inf"))'
    return f"\nThe rows sum to numbers from {low:.3g} to {high:.3g}. If this is intended, declare total = {total}."


def weights_are_not_negative(subject: Subject) -> None:
    """no weight is below 0"""
    smallest, largest = bounds_of(subject.normalizer.total)
    if smallest < 0 or largest <= 0:
        raise Skip(f"declared total = {subject.normalizer.total}")
    for case in subject.cases(PRIORS):
        w = subject.weights(case)
        expect(w, w.clamp(min=0), "weights", case, atol=0)


def masked_entries_are_zero(subject: Subject) -> None:
    """a weight that the mask forbids is exactly 0, also where all scores are far below any finite mask value"""
    # rows without an allowed key may hold NaN here: they are the subject of `dead_rows_give_zero`
    for case in subject.cases(PRIORS):
        for name, scores in (("", case.scores), (" (scores lowered by 1e6)", case.scores - 1e6)):
            w = subject.weights(replace(case, own_scores=scores))
            masked = ~case.allowed & ~(w.isnan() & ~case.allowed.any(-1, keepdim=True))
            expect(w.where(masked, 0), torch.zeros_like(w), f"masked weights{name}", case, atol=0)


def mask_equals_shorter_input(subject: Subject) -> None:
    """masking queries and keys gives the numbers of an input without them, packing texts those of each text alone"""
    for case in subject.cases(PRIORS):
        allowed, w, out = case.allowed, subject.weights(case), subject.attend(case)
        segments = case.mask.segments if isinstance(case.mask, Mask) else None
        for b, table in enumerate(allowed[:, 0]):
            if (allowed[b] != table).any():  # shortened alike in all heads
                continue
            texts = [] if segments is None else [segments[b] == text for text in segments[b].unique()]
            for part in [table & text[:, None] for text in texts] or [table]:
                rows, columns = part.any(-1), part.any(-2)
                if not rows.any():
                    continue
                shorter, one = case.take(rows, columns, slice(b, b + 1)), slice(b, b + 1)
                where = f"{case}\nexample {b} against the same without {(~rows).sum()} queries and "
                where += f"{(~columns).sum()} keys that do not belong to the others"
                expect(w[one][:, :, rows][..., columns], subject.weights(shorter), "weights", where)
                expect(out[one][:, :, rows], subject.attend(shorter), "attend", where)


def padding_never_matters(subject: Subject) -> None:
    """what stands in padded queries, keys, values, and in the scores and the prior of masked pairs changes nothing"""
    for case in subject.cases(PRIORS):
        if case.allowed.all():
            continue
        plain, filled = (replace(p, own_scores=p.scores) for p in (case, filled_padding(subject, case)))
        noise = 1e6 * subject.randn(*case.shape, salt=704)
        filled = replace(filled, own_scores=torch.where(case.allowed, plain.scores, noise))
        same_when_filled(subject, subject.weights, "the weights", plain, filled)
        same_when_filled(subject, subject.attend, "attend", case, filled_padding(subject, case))
    for n, m in subject.lengths if subject.has_own_attend else ():
        mask = Mask(queries=subject.lengths_mask(n, n, n - n // 5), keys=subject.lengths_mask(m, m - m // 4, m))
        for prior in PRIORS[:2]:
            case = subject.case("padded queries and keys (Mask)", n, m, mask, prior, salt=706)
            same_when_filled(subject, subject.attend, "attend", case, filled_padding(subject, case))


def filled_padding(subject: Subject, case: Case) -> Case:
    """The same with large numbers in queries that see no key, keys that no query sees, and in their prior."""
    rows, columns = case.allowed.any(-1)[..., None], case.allowed.any(-2)[..., None]
    noise = [1e6 * subject.randn(*x.shape, salt=700 + n) for n, x in enumerate((case.q, case.k, case.v))]
    log_prior = case.log_prior
    if log_prior is not None:
        unseen = ~case.allowed  # where all pairs that an entry of the prior belongs to are masked
        for dim in [dim for dim, size in enumerate(log_prior.shape) if size == 1]:
            unseen = unseen.all(dim, keepdim=True)
        log_prior = torch.where(
            unseen, 50 * subject.randn(*log_prior.shape, salt=703, dtype=log_prior.dtype), log_prior
        )
    states = case.states
    if states is not None:
        real = (rows if case.states_of == "queries" else columns).any(1)  # (B, L, 1)
        states = torch.where(real, states, 1e6 * subject.randn(*states.shape, salt=705))
    return replace(
        case,
        states=states,
        q=torch.where(rows, case.q, noise[0]),
        k=torch.where(columns, case.k, noise[1]),
        v=torch.where(columns, case.v, noise[2]),
        log_prior=log_prior,
    )


def same_when_filled(subject: Subject, call: Callable, name: str, plain: Case, filled: Case) -> None:
    """Failure where a call differs in value or gradient."""
    plain, filled = plain.leaves(), filled.leaves()
    where = f"{plain}\npadded queries, keys and values and the scores of masked pairs filled with numbers around 1e6"
    expected, actual = call(plain), call(filled)
    expect(actual, expected, name, where)
    expected_gradients, actual_gradients = subject.gradients(expected, plain), subject.gradients(actual, filled)
    for of, gradient in actual_gradients.items():
        expect(gradient, expected_gradients[of], f"gradient of {name} by {of}", where, atol=1e-7)


def dead_rows_give_zero(subject: Subject) -> None:
    """a query without an allowed key gets weights 0, output 0 and gradient 0; nothing is NaN, forward or backward"""
    for dtype in (torch.float64, torch.float32):
        for case in subject.cases(PRIORS, dtype):
            dead = ~case.allowed.any(-1, keepdim=True)
            if not dead.any():
                continue
            case = replace(case, own_scores=case.scores).leaves()
            w, out = subject.weights(case), subject.attend(case)
            expect(w.where(dead, 0), torch.zeros_like(w), "weights of a dead row", case, atol=0)
            expect(out.where(dead, 0), torch.zeros_like(out), "attend of a dead row", case, atol=0)
            for name, result, leaf in (("the weights", w, "scores"), ("attend", out, "q")):
                finite(result, name, case)
                gradients = subject.gradients(result, case)
                for of, gradient in gradients.items():
                    finite(gradient, f"gradient of {name} by {of}", case)
                if gradients:
                    gradient = gradients[leaf].where(dead, 0)
                    what = f"gradient of {name} by {leaf} of a dead row"
                    expect(gradient, torch.zeros_like(gradient), what, case, atol=0)


def examples_and_heads_are_independent(subject: Subject) -> None:
    """changing one head of one example changes no weight of another (of another example, with couples_heads)"""
    coupled, shown = subject.normalizer.couples_heads, False
    for case in subject.cases(PRIORS):
        expected = subject.weights(case)
        for head in range(subject.heads) if coupled else (-1,):
            changed_q, changed_k = case.q.clone(), case.k.clone()
            changed_q[-1, head] = subject.randn(*changed_q.shape[2:], salt=710)
            changed_k[-1, head] = subject.randn(*changed_k.shape[2:], salt=711)
            actual = subject.weights(replace(case, q=changed_q, k=changed_k)).clone()
            actual[-1, head] = expected[-1, head]
            if coupled:
                shown = shown or not torch.allclose(actual[-1], expected[-1], atol=1e-7)
                actual[-1] = expected[-1]
            of = "the last head" if head == -1 else f"head {head}"
            expect(actual, expected, "weights", f"{case}\nqueries and keys of {of} of the last example changed")
    if coupled and not shown and subject.heads > 1:
        raise Failure("changing single heads showed no coupling: declare couples_heads = False")


PROPERTIES = [
    rows_sum_to_total,
    weights_are_not_negative,
    masked_entries_are_zero,
    mask_equals_shorter_input,
    padding_never_matters,
    dead_rows_give_zero,
    examples_and_heads_are_independent,
]
