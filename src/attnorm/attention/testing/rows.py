"""Properties of the weights of each row, and what a mask means."""

from collections.abc import Callable
from dataclasses import replace

import torch

from attnorm.attention.masking import Mask
from attnorm.attention.testing.cases import PRIORS, WIDTH, Problem, Subject
from attnorm.attention.testing.report import Failure, Skip, bounds_of, compare, compare_all, compare_row_sums, finite


def rows_sum_to_total(subject: Subject) -> None:
    """every row with an allowed key sums to the declared `total`"""
    check_remainder(subject)
    if subject.normalizer.total is None:
        raise Skip("declared total = None")
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-5)):
        for problem in subject.problems(PRIORS, dtype):
            live = problem.allowed.any(-1)
            try:
                compare_row_sums(subject.weights(problem), subject.normalizer.total, live, problem, atol=tolerance)
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
    weights = [(subject.weights(problem), problem.allowed.any(-1)) for problem in subject.problems(PRIORS)]
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
    for problem in subject.problems(PRIORS):
        w = subject.weights(problem)
        compare(w, w.clamp(min=0), "weights", problem, atol=0)


def masked_entries_are_zero(subject: Subject) -> None:
    """a weight that the mask forbids is exactly 0, also where all scores are far below any finite mask value"""
    # rows without an allowed key may hold NaN here: they are the subject of `dead_rows_give_zero`
    for problem in subject.problems(PRIORS):
        for name, scores in (("", problem.scores), (" (scores lowered by 1e6)", problem.scores - 1e6)):
            w = subject.weights(replace(problem, given=scores))
            masked = ~problem.allowed & ~(w.isnan() & ~problem.allowed.any(-1, keepdim=True))
            compare(w.where(masked, 0), torch.zeros_like(w), f"masked weights{name}", problem, atol=0)


def mask_equals_shorter_input(subject: Subject) -> None:
    """masking queries and keys gives the numbers of an input without them"""
    for problem in subject.problems(PRIORS):
        allowed, w, out = problem.allowed, subject.weights(problem), subject.attend(problem)
        for b, table in enumerate(allowed[:, 0]):
            rows, columns = table.any(-1), table.any(-2)
            if not rows.any() or (allowed[b] != table).any():  # shortened alike in all heads
                continue
            shorter, one = problem.take(rows, columns, slice(b, b + 1)), slice(b, b + 1)
            where = f"{problem}\nexample {b} against the same without its {(~rows).sum()} queries that see no key and "
            where += f"{(~columns).sum()} keys that no query sees"
            compare(w[one][:, :, rows][..., columns], subject.weights(shorter), "weights", where)
            compare(out[one][:, :, rows], subject.attend(shorter), "attend", where)


def padding_never_matters(subject: Subject) -> None:
    """what stands in padded queries, keys, values, and in the scores and the prior of masked pairs changes nothing"""
    for problem in subject.problems(PRIORS):
        if problem.allowed.all():
            continue
        plain, filled = (replace(p, given=p.scores) for p in (problem, filled_padding(subject, problem)))
        noise = 1e6 * subject.randn(*problem.shape, salt=704)
        filled = replace(filled, given=torch.where(problem.allowed, plain.scores, noise))
        same_when_filled(subject, subject.weights, "the weights", plain, filled)
        same_when_filled(subject, subject.attend, "attend", problem, filled_padding(subject, problem))
    for n, m in subject.lengths if subject.has_own_attend else ():
        mask = Mask(queries=subject.lengths_mask(n, n, n - n // 5), keys=subject.lengths_mask(m, m - m // 4, m))
        for prior in PRIORS[:2]:
            problem = subject.problem("padded queries and keys (Mask)", n, m, mask, prior, salt=706)
            same_when_filled(subject, subject.attend, "attend", problem, filled_padding(subject, problem))


def filled_padding(subject: Subject, problem: Problem) -> Problem:
    """The same with large numbers in queries that see no key, keys that no query sees, and in their prior."""
    rows, columns = problem.allowed.any(-1)[..., None], problem.allowed.any(-2)[..., None]
    noise = [1e6 * subject.randn(*x.shape, salt=700 + n) for n, x in enumerate((problem.q, problem.k, problem.v))]
    log_prior = problem.log_prior
    if log_prior is not None:
        unseen = ~problem.allowed  # where all pairs that an entry of the prior belongs to are masked
        for dim in [dim for dim, size in enumerate(log_prior.shape) if size == 1]:
            unseen = unseen.all(dim, keepdim=True)
        log_prior = torch.where(
            unseen, 50 * subject.randn(*log_prior.shape, salt=703, dtype=log_prior.dtype), log_prior
        )
    states = problem.states
    if states is not None:
        real = problem.either(rows, columns).any(1)  # (B, L, 1)
        states = torch.where(real, states, 1e6 * subject.randn(*states.shape, salt=705))
    return replace(
        problem,
        states=states,
        q=torch.where(rows, problem.q, noise[0]),
        k=torch.where(columns, problem.k, noise[1]),
        v=torch.where(columns, problem.v, noise[2]),
        log_prior=log_prior,
    )


def same_when_filled(subject: Subject, call: Callable, name: str, plain: Problem, filled: Problem) -> None:
    """Failure where a call differs in value or gradient."""
    plain, filled = plain.leaves(), filled.leaves()
    where = f"{plain}\npadded queries, keys and values and the scores of masked pairs filled with numbers around 1e6"
    expected, actual = call(plain), call(filled)
    compare(actual, expected, name, where)
    wanted, found = subject.gradients(expected, plain), subject.gradients(actual, filled)
    compare_all(found, wanted, f"gradient of {name} by", where, atol=1e-7)


def dead_rows_give_zero(subject: Subject) -> None:
    """a query without an allowed key gets weights 0, output 0 and gradient 0; nothing is NaN, forward or backward"""
    for dtype in (torch.float64, torch.float32):
        for problem in subject.problems(PRIORS, dtype):
            dead = ~problem.allowed.any(-1, keepdim=True)
            if not dead.any():
                continue
            problem = replace(problem, given=problem.scores).leaves()
            w, out = subject.weights(problem), subject.attend(problem)
            compare(w.where(dead, 0), torch.zeros_like(w), "weights of a dead row", problem, atol=0)
            compare(out.where(dead, 0), torch.zeros_like(out), "attend of a dead row", problem, atol=0)
            for name, result, own in (("the weights", w, "scores"), ("attend", out, "q")):
                finite(result, name, problem)
                found = subject.gradients(result, problem)
                for of, gradient in found.items():
                    finite(gradient, f"gradient of {name} by {of}", problem)
                if found:
                    gradient = found[own].where(dead, 0)
                    what = f"gradient of {name} by {own} of a dead row"
                    compare(gradient, torch.zeros_like(gradient), what, problem, atol=0)


def examples_and_heads_are_independent(subject: Subject) -> None:
    """changing one head of one example changes no weight of another (of another example, with couples_heads)"""
    coupled, shown = subject.normalizer.couples_heads, False
    for problem in subject.problems(PRIORS):
        expected = subject.weights(problem)
        for head in range(subject.heads) if coupled else (-1,):
            changed_q, changed_k = problem.q.clone(), problem.k.clone()
            changed_q[-1, head] = subject.randn(*changed_q.shape[2:], salt=710)
            changed_k[-1, head] = subject.randn(*changed_k.shape[2:], salt=711)
            actual = subject.weights(replace(problem, q=changed_q, k=changed_k)).clone()
            actual[-1, head] = expected[-1, head]
            if coupled:
                shown = shown or not torch.allclose(actual[-1], expected[-1], atol=1e-7)
                actual[-1] = expected[-1]
            of = "the last head" if head == -1 else f"head {head}"
            compare(actual, expected, "weights", f"{problem}\nqueries and keys of {of} of the last example changed")
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
