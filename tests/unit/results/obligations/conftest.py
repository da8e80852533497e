"""Makes the helpers beside these tests importable."""

import sys
from pathlib import Path

# import-mode=importlib leaves test helpers unimportable; ours stand beside the tests that use them
sys.path.insert(0, str(Path(__file__).parent))
