"""Short runs give the losses that were recorded for them: a change that alters a result is noticed."""

import pytest
from losses import record
from marks import slow
from torch.testing import assert_close

pytestmark = pytest.mark.training

UPDATES = 10
CASES = [case for case in record.CASES if case[0] == "gigaword" or case[1].startswith("hnas")]


@pytest.mark.parametrize(
    ("task", "attention"), [it if it in (("gigaword", "hnas"), ("classify", "hnas")) else slow(*it) for it in CASES]
)
def test_the_first_losses_are_those_recorded(task, attention):
    """To 1e-5: processors differ by up to 3e-7 after ten updates, and by 3e-6 after fifty."""
    found, expected = record.losses(task, attention, UPDATES), record.recorded(task, attention)
    assert len(expected) == record.UPDATES
    assert_close(found, expected[:UPDATES], rtol=1e-5, atol=0)
