"""``aftershock minimise``: runs what `faults/minimise/` asks about, on warm clusters, and writes what came of it.

::

    <out>/minimise/<run id>/   plan.yaml  tried.md  result.json       the small plan, the log, what `--json` prints
                               cache.jsonl  runs/  pool/  progress.log  spark.log
"""
