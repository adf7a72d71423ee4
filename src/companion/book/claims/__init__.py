"""The claims of the texts, one row each, as data: what is said where, what became of it here, and where to see it.

The rows are TOML files in ``book/claims``; `read_claims` reads them, `value_of` gives a row's numbers from stored
results or from arithmetic of this package, `problems` says what no longer holds, and `claims_tables` makes the page.
"""

from companion.book.claims.check import problems
from companion.book.claims.model import Claim, Claims, Number, read_claims
from companion.book.claims.page import claims_tables
from companion.book.claims.values import Value, value_of

__all__ = ["Claim", "Claims", "Number", "Value", "claims_tables", "problems", "read_claims", "value_of"]
