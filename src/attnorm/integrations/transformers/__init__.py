"""Normalizers in the models of Hugging Face `transformers`: `register` for a name, `convert` for learned parameters.

Importing this package makes `transformers` warn when it loads a converted model without its normalizers.
"""

from attnorm.integrations.transformers.convert import convert
from attnorm.integrations.transformers.loading import from_pretrained, watch_loading
from attnorm.integrations.transformers.register import register
from attnorm.integrations.transformers.shares import freeze_except, harden, set_share, share_schedule

__all__ = ["convert", "freeze_except", "from_pretrained", "harden", "register", "set_share", "share_schedule"]

watch_loading()
