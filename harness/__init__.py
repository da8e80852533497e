"""The cluster and the run: what launches, breaks, drives and assembles everything else."""
