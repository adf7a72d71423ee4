"""From notebooks to the executed book: papermill, a cache that knows when to run again, and a strict build.

Also holds `measured`, the one mark by which a notebook says that a number belongs to the machine it ran on.
"""

from companion.book.marks import measured

__all__ = ["measured"]
