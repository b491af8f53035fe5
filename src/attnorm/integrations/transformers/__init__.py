"""Normalizers in the models of Hugging Face `transformers`: `register` for a name, `convert` for learned parameters."""

from attnorm.integrations.transformers.convert import convert, from_pretrained
from attnorm.integrations.transformers.register import register

__all__ = ["convert", "from_pretrained", "register"]
