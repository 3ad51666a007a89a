"""Templates of real models, from the llama.cpp sources inside the xllamacpp source distribution.

They belong to their models and are not ours to keep, so they are downloaded,
once for all tests. Set ANTIPHON_TEST_TEMPLATES=1 for that: it takes a minute.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

marks = [
    pytest.mark.skipif(
        os.environ.get("ANTIPHON_TEST_TEMPLATES") != "1",
        reason="downloads templates: set ANTIPHON_TEST_TEMPLATES=1",
    ),
    pytest.mark.timeout(600),
]


@cache
def real_templates() -> Mapping[str, str]:
    """File name without ending → Jinja source."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "xllamacpp"]
    with TemporaryDirectory() as folder:
        subprocess.run([*command, "-d", folder], check=True)  # noqa: S603
        return dict(_sources(Path(folder)))


def _sources(folder: Path) -> Iterator[tuple[str, str]]:
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        for member in sdist:
            path = Path(member.name)
            if path.parent.name == "templates" and path.suffix == ".jinja":
                content = sdist.extractfile(member)
                assert content is not None
                yield path.stem, content.read().decode()
