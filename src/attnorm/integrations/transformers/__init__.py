"""Normalizers in the models of Hugging Face `transformers`: `register` for a name, `convert` for learned parameters.

Importing this package makes `transformers` warn when it loads a converted model without its normalizers.
"""

from attnorm.integrations.transformers.convert import convert
from attnorm.integrations.transformers.loading import from_pretrained, watch_loading
from attnorm.integrations.transformers.register import register

__all__ = ["convert", "from_pretrained", "register"]

watch_loading()
