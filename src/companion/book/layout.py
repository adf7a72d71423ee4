"""Where things are in a checkout, and where the build puts what it makes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from companion.provenance import file_hash


@dataclass(frozen=True)
class Layout:
    """Paths of one checkout. The folder ``build`` holds nothing that cannot be made again."""

    root: Path

    @classmethod
    def find(cls) -> Layout:
        """The checkout of the working directory, else the one this package was installed from.

        ValueError when there is none: the notebooks are not part of an installed wheel.
        """
        candidates = [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[3]]
        for candidate in candidates:
            if (candidate / "_config.yml").is_file() and (candidate / "notebooks").is_dir():
                return cls(candidate)
        raise ValueError(
            "no checkout found: expected a folder with _config.yml and notebooks/ here or above; run from a clone"
        )

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def executed(self) -> Path:
        return self.build / "executed"

    @property
    def failed(self) -> Path:
        return self.build / "failed"

    @property
    def stage(self) -> Path:
        return self.build / "stage"

    @property
    def html(self) -> Path:
        return self.build / "html"

    def sources(self) -> list[Path]:
        """The notebooks in reading order. ValueError when there are none."""
        found = sorted(self.notebooks.glob("*.ipynb"))
        if not found:
            raise ValueError(f"no notebook in {self.notebooks}; the book cannot be built from nothing")
        return found

    @cached_property
    def _inputs(self) -> str:
        code = [
            *(
                path
                for path in sorted(self.root.glob("src/companion/**/*.py"))
                if not path.is_relative_to(self.root / "src/companion/book")
            ),
            *sorted(self.root.glob("kernels/**/*.py")),
        ]
        data = sorted(path for path in self.root.glob("data/**/*") if path.is_file())
        return tree_hash([*code, *data], self.root)

    def inputs_hash(self) -> str:
        """A hash of what every notebook may read: the package (without this part of it), the kernels and ``data/``."""
        return self._inputs


def tree_hash(files: Iterable[Path], root: Path) -> str:
    """A hash over relative paths and contents."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()} {file_hash(path)}\n".encode())
    return digest.hexdigest()
