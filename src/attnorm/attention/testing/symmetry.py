"""Theorem 1 of "A Mathematical View of Attention Models": what happens when the input of attention is reordered.

self-attention    q, k and v are projections of the same states: the output is reordered with them (equivariance)
learned queries   q does not depend on the states: the output does not change (invariance)
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.testing.cases import PRIORS, WIDTH, Case, Subject
from attnorm.attention.testing.coupling import order
from attnorm.attention.testing.report import Skip, expect


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


PROPERTIES = [self_attention_is_permutation_equivariant, learned_queries_are_permutation_invariant]
