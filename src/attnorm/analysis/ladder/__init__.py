"""Does a difference survive scale? Arms on the rungs of a ladder, compared with a baseline.

ladder_scores:     what the runs of a ladder scored. ladder_runs reads it from run folders, and score_rows from tables,
                   which anyone can extend; everything else draws on it alone.
ladder_comparison: the differences on the rungs, the trend, the projection, the multiplier and the price of each arm.
ladder_files:      the same in sentences, as a table and as JSON. ladder_charts draws it.
"""
