"""``python -m companion.book``: what the Makefile calls."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import NoReturn

from companion.book.run import compare, refresh, reproduce


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m companion.book", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    book = verbs.add_parser("reproduce", help="execute every notebook and build the book")
    book.add_argument("--force", action="store_true", help="execute even what has not changed")
    verbs.add_parser("refresh", help="execute every notebook and rewrite its stored outputs")
    verbs.add_parser("compare", help="run every notebook under nbval and compare with its stored outputs")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a job started with `&` would otherwise ignore the first
        signal.signal(number, _interrupt)
    try:
        match arguments.verb:
            case "reproduce":
                reproduce(force=arguments.force)
            case "refresh":
                refresh()
            case "compare":
                return compare()
    except KeyboardInterrupt:
        print("stopped; what was complete is kept, and the next call goes on from there", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
