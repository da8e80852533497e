"""Recipes for the images, for hosts that can't pull the official ones; ``aftershock.harness.engine`` decides when.

``recipe`` names an image after its contents, ``workshop`` is where a build happens and is cleaned up, ``base``,
``kafka``, ``cds``, ``toxiproxy`` and ``java_client`` are the builds. The files beside them are the images' contents.
"""
