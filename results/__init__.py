"""From evidence to verdict: Spark jobs, checks, report. Importing this package starts nothing and loads no Spark."""
