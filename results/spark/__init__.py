"""How Spark is started here, or spoken to where it is; the door is `results/session.py`."""
