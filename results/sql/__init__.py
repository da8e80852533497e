"""``aftershock sql``: runs, or a history of them, as tables that anybody may query in Spark SQL.

``views.py`` and ``history.py`` say which tables there are, ``statement.py`` what may be asked of them, ``printed.py``
how an answer looks. ``docs/SPARK.md`` has every column.
"""
