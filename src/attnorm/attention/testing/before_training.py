"""Before training: the cheapest properties, tried on the normalizers of a run that are not attnorm's.

A normalizer that forgets the mask trains without an error, and its decoder sees the future. One whose `attend` does not
compute its formula trains another one.
"""

import logging
import shlex
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch

from attnorm.attention.model_sites import Sites
from attnorm.attention.normalizers.base import Normalizer
from attnorm.attention.normalizers.shared.key_bias import attention_form
from attnorm.attention.site import Site
from attnorm.attention.testing.cases import PRIORS, WIDTH, Subject
from attnorm.attention.testing.check import PROPERTIES, meaning_of
from attnorm.attention.testing.report import Failure, Result, Skip
from attnorm.errors import Problem, in_yaml
from attnorm.imports import short_name

CHEAPEST = ("masked_entries_are_zero", "dead_rows_give_zero")
SHORTCUT = "attend_equals_forward_times_values"  # tried if there is one, also in the form that stores no weights
CAUSAL = "no_leak_in_causal_use"  # tried at autoregressive sites
FEW_MASKS = (
    "padded keys (dense)",
    "padded queries and keys (Mask)",
    "padded, causal, segments (Mask)",
    "dead rows and dead columns (dense)",
)

log = logging.getLogger(__name__)


def problems_before_training(sites: Sites) -> Iterator[Problem]:
    """The normalizers of a model, not attnorm's, that lack one of the cheapest properties. It takes about 50 ms each.

    sites: those of attention tables without a problem.

    A normalizer that raises on the small inputs of the check is not a problem here: a warning is logged. It may be
    right at the lengths of the run, and if it is not, the run ends with its traceback.
    """
    used: dict[str, tuple[Site, int]] = {}
    for site in sorted(sites.values(), key=attrgetter("autoregressive"), reverse=True):  # these need all properties
        for layer, name in enumerate(site.names):
            used.setdefault(name, (site, layer))
    for name, (site, layer) in used.items():
        if is_of_attnorm(site.part("normalizer", name)):
            continue
        heads = site.heads if type(site.heads) is int else 2  # any number will do if the model does not say it
        facts = {"heads": heads, "width": WIDTH, "state_width": WIDTH, "place": (site.name, layer)}
        normalizer = site.build("normalizer", name, **facts)
        key, use = f"attention.{site.key}", {"causal": site.autoregressive, "prior": bool(site.priors)}
        options = sites.tables["options"].get(short_name(name)) or {}
        if failure := failure_of(normalizer, f"{key}={name}", check_command(name, options), heads=heads, **use):
            yield Problem(key, failure, name)


def failure_of(normalizer: Normalizer, name: str, tries: str, **use: Any) -> str | None:
    """The first of the cheapest properties that a normalizer lacks, numbers that show it, and `tries`, the command that
    tries all of them. If it raises an error, a warning is logged. name: in the warning. use: as in `first_failure`."""
    try:
        failure = first_failure(normalizer, **use)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        log.warning("%s: not checked before training, because it raised %s; try %s", name, raised, tries)
        return None
    if failure is None:
        return None
    shown = failure.detail.splitlines()[-1]
    return f"{failure.name} does not hold ({failure.meaning}); {shown}. For all properties, type {tries}"


def is_of_attnorm(normalizer: Normalizer) -> bool:
    """Whether the normalizer and all normalizers inside it, such as the members of a mix, are classes of attnorm."""
    for part in normalizer.modules():
        if isinstance(part, Normalizer) and type(part).__module__.partition(".")[0] != "attnorm":
            return False
    return True


def first_failure(normalizer: Normalizer, heads: int, causal: bool, prior: bool, padded: bool = True) -> Result | None:
    """The first of the cheapest properties that a normalizer lacks, tried in eval mode on a few inputs; None if it has
    all of them.

    heads:  the number of heads of the inputs.
    causal: whether it is used at an autoregressive site. prior: whether it is used with a prior.
    padded: whether it is used with inputs of several lengths.

    Raises what the normalizer raises.
    """
    priors = (PRIORS[0], PRIORS[-1]) if prior else PRIORS[:1]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        subject = Subject(lambda: normalizer, 0, "cpu", heads, (), only=FEW_MASKS, priors=priors, training=False)
        names = [*(CHEAPEST if padded else ()), *([CAUSAL] if causal else []), *[SHORTCUT] * 2 * subject.has_own_attend]
        for number, name in enumerate(names):
            linear = name == SHORTCUT and number == len(names) - 1
            try:
                with attention_form("linear") if linear else nullcontext():
                    PROPERTIES[name](subject)
            except Failure as failure:
                return Result(name, "failed", meaning_of(name), str(failure))
            except Skip:
                continue
    return None


def check_command(name: str, options: Mapping[str, Any]) -> str:
    """The command that tries all properties of a normalizer with these options."""
    return shlex.join(["attnorm", "check", name, *(f"options.{key}={in_yaml(it)}" for key, it in options.items())])
