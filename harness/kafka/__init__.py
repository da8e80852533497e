"""What only faults ask of Kafka, over ``admin.py``: a file for each concern."""
