"""Import numpy on first use.

Hosts load the definitions of windows in every process that parses a DAG or lists assets, and compute nothing
there. For them, numpy's 0.2 s would be most of the import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            attribute = getattr(numpy, name)
            # Later accesses are as fast as an attribute of a module.
            setattr(self, name, attribute)
            return attribute

    np = _Numpy()

__all__ = ["np"]
