"""Matches predictions to reference questions by id, and counts missing and extra predictions."""

import logging
from collections.abc import Collection, Mapping

from attnorm.errors import DataError
from attnorm.wording import counted, listed

log = logging.getLogger(__name__)


def matched(predictions: Mapping[str, str], gold: Collection[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns the predictions for the questions in `gold`, and the numbers of `missing` and `extra` predictions.

    `missing` counts questions without a prediction, and `extra` counts predictions for other questions. Both are logged
    as warnings with a few ids.

    Raises ValueError if there are predictions and questions, but no prediction is for any of the questions.
    """
    extra = [name for name in predictions if name not in gold]
    if extra and len(extra) == len(predictions):
        raise DataError(
            f"no prediction is for a question of the references, which have {listed(list(gold))}; "
            f"the predictions are for {listed(extra)}"
        )
    if extra:
        log.warning("%s not in the references, ignored: %s", counted(len(extra), "prediction"), listed(extra))
    if missing := [name for name in gold if name not in predictions]:
        log.warning("%s without a prediction, scored 0: %s", counted(len(missing), "question"), listed(missing))
    kept = {name: given for name, given in predictions.items() if name in gold}
    return kept, {"missing": len(missing), "extra": len(extra)}
