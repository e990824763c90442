"""The same work by this package and by its peers, in one interleaved run: ``infocnf bench``.

Only ratios within a run mean anything, and only at equal error: every contender is swept over
tolerances, and compared where its error is the same.
"""
