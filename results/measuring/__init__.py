"""What is measured of runs, in Spark: from their records to ``Facts``. Begin with ``measure.py``."""
