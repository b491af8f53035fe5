"""Does a difference survive scale? Arms on the rungs of a ladder, compared with a baseline.

scores:     what the runs of a ladder scored. runs reads them from run folders, and tables from tables of scores, which
            anyone can extend; everything else draws on them alone.
comparison: the differences on the rungs, the trend, the projection, the multiplier and the price of each arm.
record:     the same in sentences, as a table and as JSON. figures draws it.
"""
