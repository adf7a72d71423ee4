"""From notebooks to the executed book: papermill, a cache that knows when to run again, and a strict build.

Also holds the two marks of a notebook: `measured`, for a number that belongs to the machine it ran on, and
`expectations`, for a statement that belongs to the weights it ran on.
"""

from companion.book.expectations import expectations
from companion.book.marks import measured

__all__ = ["expectations", "measured"]
