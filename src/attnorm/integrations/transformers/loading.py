"""Loads converted models with their normalizers, and warns if `transformers` loads them without."""

import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import wraps
from typing import Any

import torch
from torch import nn

from attnorm.attention.table_form import names_in
from attnorm.imports import TRUST, package_of, texts, trusted_packages
from attnorm.integrations.transformers.convert import PART, attach, convert
from attnorm.integrations.transformers.register import CONVERTED, IMPLEMENTATION, register
from attnorm.integrations.transformers.sites import SITES


def from_pretrained(model_class: Any, path: str, **options: Any) -> Any:
    """Loads a converted model that was saved with `save_pretrained`: model_class.from_pretrained, then its normalizers.

    model_class: a class of `transformers`, such as AutoModel. options: those of its `from_pretrained`.

    The configuration may name normalizers of other packages than attnorm, and importing them runs their code. This is
    refused unless their module has been imported already, their package is in the environment variable ATTNORM_TRUST,
    or `trust_remote_code=True`.

    Raises ValueError for such code, if the configuration does not record a conversion, and if a parameter of a
    normalizer is missing from the files or not expected there. `model_class.from_pretrained` alone loads the same
    model with softmax, and warns. It fails for files of `save_pretrained(..., variant="attnorm")`, which are loaded by
    from_pretrained(..., variant="attnorm").
    """
    if options.pop("output_loading_info", False):
        raise ValueError("output_loading_info=True: not available here, where unexpected weights are an error")
    original = _class_of(model_class, path, options)
    trusted = bool(options.get("trust_remote_code"))
    model, loading = with_normalizers(original, path, trusted).from_pretrained(
        path, output_loading_info=True, **options
    )
    model.__class__ = original
    owners = {name for name, _ in model.named_modules()}
    unknown = [name for name in loading["unexpected_keys"] if PART in name and name.partition(PART)[0] in owners]
    if unknown:
        raise ValueError(
            f"{path}: has weights that the entry attnorm of its config.json does not record: "
            f"{', '.join(sorted(unknown))}. If a part of the model was converted that has a configuration of its own, "
            "convert the whole model by site instead, as in convert(model, {'encoder': 'hnas'})"
        )
    converted = [*converted_parts(model)]
    if not converted:
        raise ValueError(
            f"{path}: its config.json has no entry attnorm, so the model was not converted; load it with "
            f"{model_class.__name__}.from_pretrained, then use convert"
        )
    if missing := sorted(name for name in loading["missing_keys"] if PART in name):
        raise ValueError(
            f"{path}: has no weights for {', '.join(missing)}, although its config.json says that it was converted"
        )
    loaded = {name: tensor for name, tensor in model.state_dict().items() if PART in name}
    others = {part: part.config.attnorm.get(IMPLEMENTATION) for part in converted}
    for part in converted:
        convert(part, part.config.attnorm)  # anew, because what is not saved has not been initialised
    model.load_state_dict(loaded, strict=False)
    for part, implementation in others.items():
        if implementation is not None:  # another one that it used when it was saved
            part.set_attn_implementation(implementation)
    return model


def _class_of(model_class: Any, path: str, options: Mapping[str, Any]) -> Any:
    """The class of the model that `model_class` loads, which may be one of the Auto classes."""
    from transformers import AutoConfig, PreTrainedModel

    if issubclass(model_class, PreTrainedModel):
        return model_class
    trust = {"trust_remote_code": options["trust_remote_code"]} if "trust_remote_code" in options else {}
    where = {
        key: options[key]
        for key in ("cache_dir", "code_revision", "local_files_only", "revision", "subfolder", "token")
        if key in options
    }
    config = AutoConfig.from_pretrained(path, **where, **trust)
    with torch.device("meta"):
        return type(model_class.from_config(config, **trust))


def with_normalizers(original: Any, path: str, trusted: bool) -> Any:
    """A class of models whose parts already have their normalizers when the weights are loaded.

    path: of the files. trusted: whether all code that they name may be imported.
    """

    def init(model: Any, *args: Any, **kwargs: Any) -> None:
        original.__init__(model, *args, **kwargs)
        for part in converted_parts(model):
            if not trusted:
                refuse_code(part.config.attnorm, path)
            attach(part, part.config.attnorm)

    in_float32 = {*(original._keep_in_fp32_modules_strict or ()), CONVERTED}
    members = {"__init__": init, "_keep_in_fp32_modules_strict": in_float32}
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    return type(original.__name__, (original,), members | names)


def refuse_code(recorded: Mapping[str, Any], path: str) -> None:
    """Raises ValueError if a recorded text may be the path of code that is neither trusted nor imported already."""
    for key, text in texts(recorded, "attnorm"):
        module, package = text.replace(":", ".").rpartition(".")[0], package_of(text)
        if module and module not in sys.modules and package not in trusted_packages():
            raise ValueError(
                f"{path}: {key}={text!r} in its config.json names code outside attnorm, and importing it runs it. If "
                f"you trust it, import it first, add {package!r} to the environment variable {TRUST}, or pass "
                "trust_remote_code=True"
            )


def converted_parts(model: nn.Module) -> Iterator[Any]:
    """The outermost models in a model whose configuration records a conversion."""
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel) and getattr(model.config, "attnorm", None) is not None:
        yield model
    else:
        for child in model.children():
            yield from converted_parts(child)


def watch_loading() -> None:
    """Makes `transformers` warn when it loads a converted model with softmax, and `peft` refuse to load an adapter with
    normalizers into a model without them, if they are installed. Models that were pickled find their functions."""
    try:
        from transformers import PreTrainedModel
    except ModuleNotFoundError:
        return

    base: Any = PreTrainedModel
    load = base.from_pretrained.__func__

    @wraps(load)
    def loaded(cls: Any, path: Any, *args: Any, **options: Any) -> Any:
        result = load(cls, path, *args, **options)
        for part in converted_parts(result[0] if isinstance(result, tuple) else result):
            of_sites = {site: value for site, value in part.config.attnorm.items() if site in SITES}
            is_softmax = names_in({"prior": {}, **of_sites}) == {"softmax"} or IMPLEMENTATION in part.config.attnorm
            if not is_softmax and not any(hasattr(module, CONVERTED) for module in part.modules()):
                warnings.warn(
                    f"{path}: its config.json records the normalizers {part.config.attnorm}, but {cls.__name__} has "
                    "been loaded with softmax; load it by attnorm.integrations.transformers.from_pretrained",
                    stacklevel=2,
                )
        return result

    base.from_pretrained = classmethod(loaded)
    register()
    try:
        from peft import PeftModel
    except ImportError:  # or it does not fit this version of `transformers`
        return

    of_peft: Any = PeftModel
    load_adapter = of_peft.load_adapter

    @wraps(load_adapter)
    def loaded_adapter(self: Any, model_id: Any, adapter_name: str, *args: Any, **options: Any) -> Any:
        result = load_adapter(self, model_id, adapter_name, *args, **options)
        trained = self.peft_config[adapter_name].modules_to_save or ()
        if CONVERTED in trained and not any(hasattr(module, CONVERTED) for module in self.modules()):
            raise ValueError(
                f"{model_id}: the adapter has trained normalizers, and the model has none; convert it as before the "
                "adapter was trained, as in convert(model, {'encoder': 'hnas'}, share=0)"
            )
        return result

    of_peft.load_adapter = loaded_adapter
