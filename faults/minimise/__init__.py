"""A failing plan made small. Pure: documents in, candidates out; whoever asks runs them and says whether they fail.

::

    focus ─▶ repeats ─▶ rounds ─▶ steps ─▶ placing, shorter, load, weaker, smaller ─▶ repeats
             a flake?             ddmin                                               does the small plan come back too?

Every stage is a generator: it gives a `Candidate`, is sent whether that fails the same way, and goes on from there
(`trying.py`). So no stage knows a cluster, a clock or a budget, and a search that was killed is taken up again by
answering its first questions from what was written down.
"""
