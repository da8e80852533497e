"""Warm clusters by specification, leased across tests and processes."""
