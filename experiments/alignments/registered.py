"""The hypotheses of README.md, as bounds on differences of AER in points."""

from bounds import BELOW, Claim, claim

BASELINE, DNAS, IBM = "softmax", "dnas_prefix", "IBM model 1"
AFTERWARDS = ("softmax, then dnas", "softmax, then sinkhorn")
OTHERS = (DNAS, "hnas_prefix", "dnas_slack_prefix", "ot", "fertility_softmax", *AFTERWARDS)
PREDICTS, READS = "predicts", "reads"  # a step of the decoder, see `word_attention`

CLAIMS = [
    claim("H1", DNAS, BASELINE, PREDICTS, BELOW),
    claim("H1", DNAS, BASELINE, PREDICTS, (-4, -1)),
    *(claim("H2", arm, BASELINE, PREDICTS, BELOW) for arm in ("hnas_prefix", "dnas_slack_prefix")),
    *(claim("H2", arm, DNAS, PREDICTS, (-1, 1)) for arm in ("hnas_prefix", "dnas_slack_prefix")),
    *(claim("H3", arm, BASELINE, PREDICTS, BELOW) for arm in AFTERWARDS),
    claim("H3", AFTERWARDS[1], AFTERWARDS[0], PREDICTS, BELOW),
    claim("H4", "fertility_softmax", BASELINE, PREDICTS, (-2, 0)),
    claim("H5", "ot", BASELINE, PREDICTS, (-2, 2)),
    *(claim("H6", IBM, arm, PREDICTS, BELOW) for arm in (BASELINE, *OTHERS)),
    *(Claim("H7", (arm, PREDICTS), (arm, READS), BELOW) for arm in OTHERS),
]
