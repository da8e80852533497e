"""pytest's door: what the plugin's hooks (`harness/pytest_plugin.py`) stand on."""
