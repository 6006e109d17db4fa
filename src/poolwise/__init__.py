"""poolwise: what would the new policy have earned? Ask every log you have.

The stub `__init__.pyi` lists the public names once, for type checkers and for the loader,
which imports a name when it is first used: `poolwise --help` waits for no library.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
