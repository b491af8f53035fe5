"""The package sacrebleu, which computes BLEU for the tasks that write texts."""

from typing import Any

from attnorm.errors import UserError


def sacrebleu(extra: str) -> Any:
    """The package sacrebleu. Raises UserError with the command that installs it.

    extra: the extra of this package that includes it, such as "translation".
    """
    try:
        import sacrebleu
    except ImportError as error:
        raise UserError(f"BLEU needs the package sacrebleu: pip install 'attnorm[{extra}]'") from error
    return sacrebleu
