"""Who may depend on whom: order of keys and queries, coupling of queries, the future, the columns."""

from dataclasses import replace

import torch
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.testing.cases import PRIORS, WIDTH, Case, Subject
from attnorm.attention.testing.report import Failure, Skip, at_least, expect

COUPLINGS = ("none", "past", "all")
CHANGE = 1e-7  # a difference above this is a dependence; below it, the last digits of an iterative solver


def order(subject: Subject, size: int) -> Tensor:
    """A random reordering that moves something wherever there is something to move."""
    return subject.randn(size, salt=720).argsort().roll(1) if size > 2 else torch.arange(size).flip(0)


def keys_may_be_reordered(subject: Subject) -> None:
    """reordering the keys reorders the columns of the weights"""
    if not subject.normalizer.key_equivariant:
        raise Skip("declared key_equivariant = False")
    for case in subject.cases(PRIORS):
        n, m = case.shape[-2:]
        columns = order(subject, m).to(subject.device)
        everything = torch.arange(n, device=subject.device)
        actual = subject.weights(case.take(everything, columns))
        where = f"{case}\nkeys in the order {columns.tolist()}"
        expect(actual, subject.weights(case)[..., columns], "weights", where)


def queries_may_be_reordered(subject: Subject) -> None:
    """reordering the queries reorders the rows of the weights"""
    if not subject.normalizer.query_equivariant:
        raise Skip("declared query_equivariant = False")
    for case in subject.cases(PRIORS):
        n, m = case.shape[-2:]
        rows = order(subject, n).to(subject.device)
        everything = torch.arange(m, device=subject.device)
        actual = subject.weights(case.take(rows, everything))
        where = f"{case}\nqueries in the order {rows.tolist()}"
        expect(actual, subject.weights(case)[..., rows, :], "weights", where)


def couples_queries_as_declared(subject: Subject) -> None:
    """a row of weights depends on other queries exactly as `couples_queries` declares"""
    declared = subject.normalizer.couples_queries
    if declared not in COUPLINGS:
        raise Failure(f"couples_queries={declared!r}: allowed: {', '.join(map(repr, COUPLINGS))}")
    on_later, on_earlier = False, False  # whether some row depends on a later, an earlier query
    broken = None  # the first dependence that is not declared
    for case in subject.cases(("no", "pairwise")):
        n, before = case.shape[2], subject.weights(case)
        for query in range(n):
            q = case.q.clone()
            q[:, :, query] = 2 * subject.randn(*q[:, :, query].shape, salt=730 + query)
            changed = replace(case, q=q)
            if case.states is not None and case.states_of == "queries":
                states = case.states.clone()
                states[:, query] = 2 * subject.randn(*states[:, query].shape, salt=730 + query)
                changed = replace(changed, states=states)
            moved = (subject.weights(changed) - before).abs().amax(dim=(0, 1, 3))  # (N,)
            for row in range(n):
                if row == query or moved[row] <= CHANGE:
                    continue
                on_later, on_earlier = on_later or query > row, on_earlier or query < row
                if broken is None and (declared == "none" or (declared == "past" and query > row)):
                    broken = (
                        f"{case}\nchanging query {query} moved a weight in row {row} by {moved[row]:.1e}, but "
                        f"couples_queries = {declared!r} promises that it moves "
                        + ("its own row only" if declared == "none" else "no earlier row")
                    )
    shown = "all" if on_later else "past" if on_earlier else "none"
    if broken:
        raise Failure(f"{broken}\nIf this is intended, declare couples_queries = {shown!r}.")
    if shown != declared:
        raise Failure(
            f"changing single queries of {len(list(subject.masks()))} cases showed a coupling of {shown!r} only: "
            f"couples_queries = {declared!r} is stricter than needed; declare {shown!r}"
        )


def no_leak_in_causal_use(subject: Subject) -> None:
    """under a causal mask what comes later changes nothing before, in value and gradient"""
    if subject.normalizer.couples_queries == "all":
        raise Skip('declared couples_queries = "all": refused at autoregressive sites')
    for prior in subject.priors:
        dense = torch.ones(6, 6, dtype=torch.bool, device=subject.device).tril()
        for name, mask in (("causal (Mask)", Mask(causal=True)), ("causal (dense)", dense)):
            case = subject.case(name, 6, 6, mask, prior, salt=740).leaves()
            expected = subject.attend(case)
            for first in (1, 3, 5):
                where = f"{case}\nqueries, keys and values from position {first} on changed"
                later = torch.arange(6, device=subject.device)[:, None] >= first
                noise = [3 * subject.randn(*case.q.shape, salt=750 + i) for i in range(3)]
                q, k, v = (torch.where(later, n, x) for n, x in zip(noise, (case.q, case.k, case.v), strict=True))
                states = case.states
                if states is not None:
                    states = torch.where(later, 3 * subject.randn(*states.shape, salt=753), states)
                actual = subject.attend(replace(case, q=q, k=k, v=v, states=states))
                expect(actual[:, :, :first], expected[:, :, :first], "attend", where, atol=CHANGE)
                by_autograd = subject.gradients(expected[:, :, :first], case) if first == 3 else {}
                for of in by_autograd.keys() & {"q", "k", "v", "states"}:
                    gradient = by_autograd[of].where(later, 0)
                    what = f"gradient of the positions before {first} by {of}"
                    expect(gradient, torch.zeros_like(gradient), what, case, atol=CHANGE)


def step_equals_full_pass(subject: Subject) -> None:
    """`step`, a query at a time, gives the rows of the full pass, also while the keys grow"""
    if subject.normalizer.couples_queries != "past":
        raise Skip(f"declared couples_queries = {subject.normalizer.couples_queries!r}: a cached query needs no state")
    if not hasattr(subject.normalizer, "step"):
        raise Skip("has no `step`: it cannot decode with a cache")
    module = subject.module()
    for case in subject.cases(PRIORS):
        expected, state, n = subject.weights(case), None, case.shape[2]
        grows = case.name.startswith("causal (")
        for row in range(n):
            now = (..., slice(row, row + 1), slice(row + 1 if grows else None))
            log_prior = None if case.log_prior is None else case.log_prior.expand(case.shape)[now]
            seen = case.take(torch.tensor([row]), torch.arange(row + 1 if grows else case.shape[-1]))
            given = subject.declared(seen, module)
            w, state = module.step(case.scores[now], case.allowed[now], state, log_prior=log_prior, **given)
            expect(w, expected[now], "weights of one step", f"{case}\nstep for query {row}")


def a_key_shift_changes_nothing(subject: Subject) -> None:
    """a number added to all scores of a key changes no weight"""
    if not subject.normalizer.key_shift_invariant:
        raise Skip("declared key_shift_invariant = False")
    for case in subject.cases(PRIORS):
        shift = 3 * subject.randn(*case.shape[:2], 1, case.shape[-1], salt=760)
        actual = subject.weights(replace(case, own_scores=case.scores + shift))
        expect(actual, subject.weights(case), "weights", f"{case}\nscores shifted by a number per key")


def every_key_keeps_its_least_mass(subject: Subject) -> None:
    """without a prior each key that some query may see keeps sum_i w_ij >= least_mass / M (Lemma 1)"""
    if not subject.normalizer.least_mass > 0:
        raise Skip(f"declared least_mass = {subject.normalizer.least_mass:g}")
    for case in subject.cases():
        for factor in (1.0, 10.0, 100.0):
            seen = case.allowed.any(-2)  # (B, H, M)
            least = subject.normalizer.least_mass / seen.sum(-1, keepdim=True).clamp(min=1) * seen
            mass = subject.weights(replace(case, own_scores=factor * case.scores)).sum(-2)
            at_least(mass, least, "mass of a key", f"{case}\nscores times {factor:g}", slack=1e-7)


# Theorem 1 of "A Mathematical View of Attention Models": what happens when the input of attention is reordered.
# self-attention    q, k and v are projections of the same states: the output is reordered with them (equivariance)
# learned queries   q does not depend on the states: the output does not change (invariance)


def self_attention_is_permutation_equivariant(subject: Subject) -> None:
    """reordering the states of self-attention reorders its outputs in the same way (Theorem 1)"""
    normalizer = subject.normalizer
    if not (normalizer.key_equivariant and normalizer.query_equivariant):
        raise Skip("declared key_equivariant or query_equivariant = False")
    for case in square_cases(subject):
        states = subject.randn(*case.v.shape, salt=770)
        case = of_states(subject, case, states)
        expected = subject.attend(case)
        places = order(subject, states.shape[2]).to(subject.device)
        moved = of_states(subject, case.take(places, places), states[:, :, places])
        where = f"{case}\nstates in the order {_shown(places)}"
        expect(subject.attend(moved), expected[:, :, places], "attend", where)


def learned_queries_are_permutation_invariant(subject: Subject) -> None:
    """reordering the states changes no output of attention with learned queries (Theorem 1)"""
    if not subject.normalizer.key_equivariant:
        raise Skip("declared key_equivariant = False")
    for case in subject.cases(PRIORS):
        n, m = case.shape[2:]
        expected = subject.attend(case)  # its queries stand for the learned ones
        places = order(subject, m).to(subject.device)
        moved = case.take(torch.arange(n, device=subject.device), places)
        where = f"{case}\nkeys and values in the order {_shown(places)}"
        expect(subject.attend(moved), expected, "attend", where)


def square_cases(subject: Subject) -> list[Case]:
    """The cases with as many queries as keys, with masks that are reordered together with the states. Some have the
    lengths at which `attend` may take another path than `forward`."""
    dense = subject.randn(2, subject.heads, 6, 6, salt=771) > 0
    real = subject.lengths_mask(6, 6, 4)
    masks = {
        "no mask": None,
        "padded (Mask)": Mask(queries=real, keys=real),
        "causal (Mask)": Mask(causal=True),
        "segments (Mask)": Mask(segments=torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 2, 2]], device=subject.device)),
        "random pairs (dense)": dense,
    }
    named = enumerate(masks.items())
    cases = [
        subject.case(f"{name}, states", 6, 6, mask, prior, salt=n) for n, (name, mask) in named for prior in PRIORS
    ]
    lengths = sorted({max(pair) for pair in subject.lengths}) if subject.has_own_attend else []
    return cases + [subject.case("no mask, states", n, n, salt=n) for n in lengths]


def of_states(subject: Subject, case: Case, states: Tensor) -> Case:
    """The same case with queries, keys and values that are projections of `states`."""
    q, k, v = (states @ subject.randn(WIDTH, WIDTH, salt=772 + i) / WIDTH**0.5 for i in range(3))
    same = None if case.states is None else states[:, 0]
    return replace(case, q=1.5 * q, k=k, v=v, states=same)


def _shown(places: Tensor) -> str:
    """A reordering, shortened if it is long."""
    first = places[:10].tolist()
    return f"{first}" if len(places) <= 10 else f"{first} ..."


PROPERTIES = [
    keys_may_be_reordered,
    queries_may_be_reordered,
    couples_queries_as_declared,
    no_leak_in_causal_use,
    step_equals_full_pass,
    a_key_shift_changes_nothing,
    every_key_keeps_its_least_mass,
    self_attention_is_permutation_equivariant,
    learned_queries_are_permutation_invariant,
]
